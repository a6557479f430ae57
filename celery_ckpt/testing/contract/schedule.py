"""The contract of ``schedule``, ``unschedule``, ``reschedule`` and ``claim_due``."""

from __future__ import annotations

import pytest

from celery_ckpt.records import Schedule
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.features import needs
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures
from celery_ckpt.testing.factories import make_run


class ScheduleContract(ContractFixtures):
    """Each scheduled agent becomes due once, for one caller."""

    def test_a_due_agent_is_claimed_by_one_caller(self, store: CheckpointStore) -> None:
        for name in ("a", "{b}", "c d"):
            store.schedule(name, 0)
        store.schedule("later", LONG_TTL)

        found = store.claim_due(10, LONG_TTL)

        assert sorted(name for name, _ in found) == ["a", "c d", "{b}"]
        assert store.claim_due(10, LONG_TTL) == []
        assert list(store.agents()) == []

    def test_an_agent_is_due_again_when_its_claim_expires(self, store: CheckpointStore) -> None:
        store.schedule("agent", 0)

        assert [name for name, _ in store.claim_due(1, -1)] == ["agent"]
        assert [name for name, _ in store.claim_due(1, -1)] == ["agent"]

    def test_unscheduling_removes_only_the_entry_that_was_read(self, store: CheckpointStore) -> None:
        first = store.schedule("agent", 0)
        second = store.schedule("agent", 0)

        assert first != second
        assert store.unschedule({"agent": first}) == 0
        assert store.unschedule({"agent": second, "unknown": second}) == 1
        assert store.unschedule({"agent": second}) == 0
        assert store.claim_due(10, LONG_TTL) == []

    @pytest.mark.parametrize("on", Schedule)
    def test_scheduling_never_makes_an_agent_due_later(
        self, store: CheckpointStore, on: Schedule
    ) -> None:
        first = store.schedule("agent", 0, on)
        second = store.schedule("agent", LONG_TTL, on)

        assert [name for name, _ in store.claim_due(10, LONG_TTL, on)] == ["agent"]
        assert first != second, "a caller that has read the first due time must notice"

    def test_scheduling_makes_an_agent_due_earlier(self, store: CheckpointStore) -> None:
        store.schedule("agent", LONG_TTL)
        store.schedule("agent", 0)

        assert [name for name, _ in store.claim_due(10, LONG_TTL)] == ["agent"]

    def test_runs_that_are_sent_or_blocked_do_not_put_off_the_check_of_the_active_one(
        self, store: CheckpointStore
    ) -> None:
        active, blocked = make_run("agent", "active"), make_run("agent", "blocked")
        store.add_run(active, due_in=LONG_TTL)
        store.start_run(active, "worker", LONG_TTL)
        store.schedule("agent", 0)

        store.add_run(blocked, due_in=LONG_TTL)
        store.start_run(blocked, "worker", LONG_TTL)

        assert [name for name, _ in store.claim_due(10, LONG_TTL)] == ["agent"]

    def test_an_attempt_makes_its_agent_due_when_its_lease_ends(self, store: CheckpointStore) -> None:
        run = make_run("agent")
        store.add_run(run, due_in=0)

        due_at = store.start_run(run, "worker", LONG_TTL).due_at

        assert store.claim_due(10, LONG_TTL) == []
        assert store.unschedule({"agent": due_at}) == 1

    def test_a_lease_that_was_lost_cannot_put_off_the_check_of_the_next_attempt(
        self, store: CheckpointStore
    ) -> None:
        run = make_run("agent")
        store.add_run(run)
        lost = store.start_run(run, "worker", LONG_TTL).lease
        assert lost is not None
        store.start_run(run, "another worker", LONG_TTL, over=lost)
        store.schedule("agent", 0)

        assert not store.release(lost, due_in=LONG_TTL)

        assert [name for name, _ in store.claim_due(10, LONG_TTL)] == ["agent"]

    def test_claim_due_returns_at_most_limit_agents(self, store: CheckpointStore) -> None:
        for number in range(7):
            store.schedule(f"agent-{number}", 0)

        found = [name for _ in range(3) for name, _ in store.claim_due(3, LONG_TTL)]

        assert len(found) == len(set(found)) == 7

    @pytest.mark.parametrize("on", Schedule)
    def test_rescheduling_changes_only_the_due_time_that_was_read(
        self, store: CheckpointStore, on: Schedule
    ) -> None:
        needs("reschedule", store)
        stale = store.schedule("changed", 0, on)
        due_times = {name: store.schedule(name, 0, on) for name in ("a", "{b}", "c d", "changed")}

        moved = store.reschedule({**due_times, "changed": stale, "unknown": stale}, LONG_TTL, on)

        assert sorted(moved) == ["a", "c d", "{b}"]
        assert [name for name, _ in store.claim_due(100, LONG_TTL, on)] == ["changed"]
        assert store.unschedule(due_times, on) == 0
        assert store.unschedule(moved, on) == 3
        assert store.reschedule({}, LONG_TTL, on) == {}

    def test_rescheduling_always_changes_the_due_time(self, store: CheckpointStore) -> None:
        needs("reschedule", store)
        due_at = store.schedule("agent", LONG_TTL)

        moved = store.reschedule({"agent": due_at}, LONG_TTL)

        assert moved["agent"] != due_at
        assert store.reschedule({"agent": due_at}, 0) == {}
        assert store.claim_due(1, LONG_TTL) == []

    def test_a_rescheduled_agent_becomes_due_at_its_new_time(self, store: CheckpointStore) -> None:
        needs("reschedule", store)
        due_at = store.schedule("agent", LONG_TTL)

        moved = store.reschedule({"agent": due_at}, -1)

        assert [name for name, _ in store.claim_due(1, LONG_TTL)] == ["agent"]
        assert store.unschedule(moved) == 0, "claiming has changed it again"

    def test_counting_watchdogs_counts_at_least_the_one_that_asks(self, store: CheckpointStore) -> None:
        assert store.count_watchdogs("one", LONG_TTL) == 1
        assert store.count_watchdogs("one", LONG_TTL) == 1
        assert store.count_watchdogs("two", LONG_TTL) in (1, 2)
        assert list(store.agents()) == []
