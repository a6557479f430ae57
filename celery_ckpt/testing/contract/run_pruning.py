"""The contract of ``apply`` for the records of old runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from celery_ckpt.records import RunStatus
from celery_ckpt.retention.policy import Rules
from celery_ckpt.retention.report import AgentPolicy, PrunePlan
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import (
    LONG_TTL,
    SWEEP,
    ContractFixtures,
    judged,
    settled,
    sweep,
)
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROSECOND, SECOND, HOUR = timedelta(microseconds=1), timedelta(seconds=1), timedelta(hours=1)
HALF = SECOND / 2
#: Runs are deleted an hour after their end.
RULES = Rules(keep=None, forget_after=HOUR.total_seconds())


def ids(store: CheckpointStore, agent_id: str = "agent") -> list[str]:
    """Return the ids of the stored runs, in order."""
    return [run.run_id for run in store.runs(agent_id)]


def deleted(store: CheckpointStore, before: datetime, agent_id: str = "agent") -> int:
    """Delete the runs that ended by ``before``, and return their number."""
    [snapshot] = store.snapshots([agent_id])
    [pruned] = store.apply([PrunePlan(snapshot, runs_before=before)])
    return pruned.runs


class RunPruningContract(ContractFixtures):
    """Pruning deletes the records of runs that ended long ago, and no others."""

    # -- which are deleted ---------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "limit", [NOON, NOON + MICROSECOND, NOON + HALF, NOON + SECOND - MICROSECOND]
    )
    def test_runs_that_ended_by_the_limit_are_deleted(
        self, store: CheckpointStore, limit: datetime
    ) -> None:
        ends = [NOON - SECOND, NOON - MICROSECOND, NOON, NOON + MICROSECOND, NOON + HALF, NOON + SECOND]
        for number, end in enumerate([*ends, NOON]):
            settled(store, "agent", f"run {number}", end)

        count = sum(end <= limit for end in ends)
        assert deleted(store, limit) == count
        assert ids(store) == [f"run {number}" for number in range(count, len(ends) + 1)]
        assert deleted(store, limit) == 0

    def test_a_run_without_an_end_time_counts_from_when_it_was_sent(
        self, store: CheckpointStore
    ) -> None:
        for run_id, sent in {"old": NOON, "new": NOON + MICROSECOND, "last": NOON}.items():
            settled(store, "agent", run_id, None, created_at=sent)

        assert deleted(store, NOON) == 1
        assert ids(store) == ["new", "last"]

    @pytest.mark.parametrize("status", [RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED])
    def test_old_runs_are_deleted_whatever_their_final_status(
        self, store: CheckpointStore, status: RunStatus
    ) -> None:
        result = {"created_at": "2099-01-01T00:00:00Z", "ended_at": "2099-01-01T00:00:00Z"}
        settled(store, "agent", "old", NOON, status, result=result, error='"ended_at":"2099Z"')
        settled(store, "agent", "last", NOON)

        assert deleted(store, NOON) == 1
        assert (ids(store), store.run("agent", "old")) == (["last"], None)

    def test_the_latest_run_is_kept(self, store: CheckpointStore) -> None:
        settled(store, "alone", "only", NOON)
        store.add_run(make_run("agent", "first"))
        store.add_run(make_run("agent", "last"))
        settled(store, "agent", "last", NOON - HOUR)
        settled(store, "agent", "first", NOON)

        assert (deleted(store, NOON, "alone"), deleted(store, NOON)) == (0, 1)
        assert (ids(store, "alone"), ids(store)) == (["only"], ["last"])
        [snapshot] = store.snapshots(["agent"])
        assert snapshot.last_run is not None
        assert snapshot.last_run.run_id == "last"

    def test_a_run_that_is_not_settled_is_kept(self, store: CheckpointStore) -> None:
        for run_id in ("queued", "ended", "reopened", "last"):
            sent = {"created_at": NOON - HOUR, "delivered": run_id == "queued"}
            store.add_run(make_run("agent", run_id, **sent))
        ended = {"status": RunStatus.FAILED, "ended_at": NOON - HOUR}
        store.update_run(make_run("agent", "ended").model_copy(update=ended))
        settled(store, "agent", "reopened", NOON - HOUR, RunStatus.FAILED)
        settled(store, "agent", "last", NOON - HOUR)
        store.record_step(make_step("agent", "reopened"))
        plan = PrunePlan(store.snapshots(["agent"])[0], runs_before=NOON)
        again = {"status": RunStatus.QUEUED, "ended_at": NOON - HOUR}
        store.update_run(make_run("agent", "reopened").model_copy(update=again))

        assert store.apply([plan])[0].runs == 1, "the reopened run was sent after the other ones"
        assert ids(store) == ["queued", "ended", "reopened"]
        assert len(store.steps("agent", "reopened")) == 1
        assert len(store.activity("agent").open) == 3

    def test_an_agent_named_by_its_task_keeps_the_run_of_that_name(
        self, store: CheckpointStore
    ) -> None:
        for run_id in ("agent", "later", "last"):
            settled(store, "agent", run_id, NOON)

        assert deleted(store, NOON) == 1
        assert ids(store) == ["agent", "last"]
        assert store.snapshots(["agent"])[0].is_named_by_task

    # -- what is deleted with them -------------------------------------------------------------------

    def test_the_steps_of_a_deleted_run_are_deleted_too(self, store: CheckpointStore) -> None:
        names = ["a", "a:", "é", "é:é", "ab", "a b", "last"]
        for run_id in names:
            settled(store, "agent", run_id, NOON, RunStatus.FAILED)
            for key in ("x", "a:x", "é:x", ":"):
                store.record_step(make_step("agent", run_id, key))
        settled(store, "agent", "ab", NOON + MICROSECOND, RunStatus.FAILED)

        assert deleted(store, NOON) == 5
        assert ids(store) == ["ab", "last"]
        for run_id in names:
            left = 4 if run_id in ("ab", "last") else 0
            assert len(store.steps("agent", run_id)) == left

    def test_nothing_but_old_runs_is_deleted(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        settled(store, "other", "old", NOON)
        checkpoint = make_checkpoint("agent", run_id="old")
        store.save(checkpoint)
        for run_id in ("old", "last"):
            settled(store, "agent", run_id, NOON)
        deleted(store, NOON)

        assert (ids(other_store), ids(other_store, "other")) == (["last"], ["old"])
        assert other_store.list("agent") == [checkpoint]
        assert list(other_store.findings()) == []
        start = other_store.start_run(make_run("agent", "next"), "me", LONG_TTL)
        assert start.lease is not None
        assert ids(store) == ["last", "next"]

    def test_a_deleted_run_that_is_delivered_again_starts_from_the_beginning(
        self, store: CheckpointStore
    ) -> None:
        for run_id in ("old", "last"):
            settled(store, "agent", run_id, NOON)
        deleted(store, NOON)
        start = store.start_run(make_run("agent", "old"), "me", LONG_TTL)

        assert (start.run.attempts, start.lease is not None) == (1, True)
        assert ids(store) == ["last", "old"]
        assert store.snapshots(["agent"])[0].is_busy

    # -- when nothing is deleted ---------------------------------------------------------------------

    def test_nothing_is_deleted_if_the_policy_has_changed(self, store: CheckpointStore) -> None:
        for run_id in ("old", "last"):
            settled(store, "agent", run_id, NOON)
        plan = PrunePlan(store.snapshots(["agent"])[0], runs_before=NOON)
        store.set_policy("agent", AgentPolicy(), AgentPolicy(forget_after=1e9))

        assert store.apply([plan])[0].runs == 0
        assert ids(store) == ["old", "last"]

    def test_an_agent_deleted_during_a_sweep_stays_deleted(self, store: CheckpointStore) -> None:
        for run_id in ("old", "last"):
            settled(store, "agent", run_id, NOON)
        plan = PrunePlan(store.snapshots(["agent"])[0], runs_before=NOON)
        store.delete("agent")

        assert store.apply([plan])[0].runs == 0
        assert list(store.agents()) == []
        assert store.snapshots(["agent"])[0].seen == ""

    # -- when an agent is due ------------------------------------------------------------------------

    def test_a_snapshot_has_the_end_of_the_oldest_run_that_may_be_deleted(
        self, store: CheckpointStore
    ) -> None:
        settled(store, "agent", "agent", NOON - HOUR)
        settled(store, "agent", "only", NOON - HOUR)
        deleted(store, NOON - 2 * HOUR)
        ends = [NOON + HALF, NOON + MICROSECOND, *[NOON + SECOND] * 6, NOON]
        for number, end in enumerate(ends):
            settled(store, "agent", f"run {number}", end)
        deleted(store, NOON)

        assert store.snapshots(["agent"])[0].earliest_end == NOON + MICROSECOND
        assert ids(store) == ["agent", *(f"run {number}" for number in range(len(ends)))]

    def test_an_agent_with_one_run_has_no_old_run(self, store: CheckpointStore) -> None:
        settled(store, "agent", "only", NOON)
        store.acquire("leased", "me", LONG_TTL)

        assert [snapshot.earliest_end for snapshot in store.snapshots(["agent", "leased"])] == [
            None,
            None,
        ]

    def test_an_idle_agent_is_scheduled_for_when_its_next_run_becomes_old(
        self, store: CheckpointStore
    ) -> None:
        now = datetime.now(UTC)
        for run_id, ago in {"old": 2 * HOUR, "young": HOUR / 2, "last": HOUR / 4}.items():
            settled(store, "agent", run_id, now - ago)

        later, looks = timedelta(0), []
        while plans := judged(store, RULES, later=later):
            [plan] = plans
            [pruned] = store.apply([replace(plan, again=plan.again and -1)])
            looks.append(pruned.runs)
            later += timedelta(seconds=plan.again or 0)
        assert looks == [1, 1]
        assert ids(store) == ["last"]
        assert store.count_due(SWEEP) == 0

    def test_old_runs_of_a_busy_agent_are_deleted_too(self, store: CheckpointStore) -> None:
        now = datetime.now(UTC)
        for run_id, ago in {"old": 2 * HOUR, "young": HOUR / 2}.items():
            settled(store, "agent", run_id, now - ago)
        store.start_run(make_run("agent", "at work"), "me", LONG_TTL)
        sweep(store, RULES)

        assert ids(store) == ["young", "at work"]
