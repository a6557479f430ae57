"""The contract of ``start_run``, ``settle_run``, ``cancel_run`` and ``activity``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import sleep
from typing import Any

import pytest

from celery_ckpt.errors import CheckpointTooLarge, LeaseHeld, LeaseLost, RunNotFound, RunOver
from celery_ckpt.records import Lease, RunRecord, RunStatus, Schedule
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step


def _started(store: CheckpointStore, run: RunRecord, **options: Any) -> tuple[RunRecord, Lease]:
    start = store.start_run(run, "worker", LONG_TTL, **options)
    assert start.lease is not None
    return start.run, start.lease


def _ended(run: RunRecord, status: RunStatus = RunStatus.SUCCEEDED, **changes: Any) -> RunRecord:
    return run.model_copy(update={"status": status, **changes})


class TurnsContract(ContractFixtures):
    """An agent has one active run; the others follow in the order in which they were sent."""

    def test_a_delivered_run_starts_with_a_lease_and_counts_an_attempt(
        self, store: CheckpointStore
    ) -> None:
        store.add_run(make_run("agent", "run", envelope={"args": [1.0, {}, []]}))

        run, lease = _started(store, make_run("agent", "run", delivery="tag 1%"))

        assert (run.status, run.attempts, run.delivery) == (RunStatus.RUNNING, 1, "tag 1%")
        assert run.envelope == {"args": [1.0, {}, []]}
        assert store.run("agent", "run") == run
        assert store.holder("agent") == lease
        assert store.activity("agent").active == "run"

    def test_an_unknown_run_is_added_when_it_starts(self, store: CheckpointStore) -> None:
        run, _ = _started(store, make_run("agent", "run", task="t", envelope={"a": None}))

        assert (run.attempts, run.task, run.envelope) == (1, "t", {"a": None})
        assert store.runs("agent") == [run]
        assert list(store.agents()) == ["agent"]

    def test_a_second_delivery_of_an_active_run_is_refused(self, store: CheckpointStore) -> None:
        run, _ = _started(store, make_run("agent", "run"))

        with pytest.raises(LeaseHeld):
            store.start_run(make_run("agent", "run"), "other", LONG_TTL)
        assert store.run("agent", "run") == run

    def test_a_dead_owner_is_replaced_immediately(self, store: CheckpointStore) -> None:
        _, lease = _started(store, make_run("agent", "run"))

        run, newer = _started(store, make_run("agent", "run"), over=lease)

        assert (run.attempts, newer.token) == (2, lease.token + 1)
        with pytest.raises(LeaseLost):
            store.save(make_checkpoint("agent"), lease)

    def test_a_released_run_starts_again(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))

        handed = run.model_copy(update={"status": RunStatus.QUEUED, "retries": 1})
        assert store.release(lease, run=handed) is True
        assert store.run("agent", "run") == handed
        again, _ = _started(store, make_run("agent", "run"))

        assert (again.attempts, again.retries, again.stalled) == (2, 1, 0)

    def test_releasing_a_lost_lease_does_not_change_the_run(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        newest, _ = _started(store, make_run("agent", "run"), over=lease)

        assert store.release(lease, run=_ended(run)) is False
        assert store.run("agent", "run") == newest

    def test_attempts_that_record_nothing_are_counted_as_stalled(self, store: CheckpointStore) -> None:
        _, lease = _started(store, make_run("agent", "run"))
        for count in (1, 2):
            run, lease = _started(store, make_run("agent", "run"), over=lease)
            assert run.stalled == count
        store.record_step(make_step("agent", "run"), lease)
        run, lease = _started(store, make_run("agent", "run"), over=lease)
        assert run.stalled == 0
        store.save(make_checkpoint("agent"), lease)
        run, lease = _started(store, make_run("agent", "run"), over=lease)
        assert (run.stalled, run.attempts) == (0, 5)

    def test_other_runs_are_blocked_and_follow_in_order(self, store: CheckpointStore) -> None:
        for name in ("first", "second", "third"):
            store.add_run(make_run("agent", name))
        first, lease = _started(store, make_run("agent", "first"))
        for name in ("third", "second"):
            start = store.start_run(make_run("agent", name, delivery=name), "worker", LONG_TTL)
            assert (start.lease, start.run.status) == (None, RunStatus.BLOCKED)
            assert start.run.delivery == name
        store.release(lease, run=first.model_copy(update={"status": RunStatus.QUEUED}))
        assert store.start_run(make_run("agent", "second"), "w", LONG_TTL).lease is None

        first, lease = _started(store, make_run("agent", "first"))
        second = store.settle_run(_ended(first), lease)

        assert second is not None
        assert (second.run_id, second.status) == ("second", RunStatus.QUEUED)
        assert store.start_run(make_run("agent", "third"), "w", LONG_TTL).lease is None
        second, lease = _started(store, make_run("agent", "second"))
        third = store.settle_run(_ended(second), lease)
        assert third is not None
        assert third.run_id == "third"
        third, lease = _started(store, make_run("agent", "third"))
        assert store.settle_run(_ended(third), lease) is None
        assert store.activity("agent").open == []

    def test_a_settled_run_never_starts_again(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        store.settle_run(_ended(run, result=[1]), lease)

        start = store.start_run(make_run("agent", "run"), "late", LONG_TTL)

        assert start.lease is None
        assert start.run == _ended(run, result=[1], delivered=True)
        assert store.holder("agent") is None

    def test_settling_drops_the_steps_of_that_run_only(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        store.record_step(make_step("agent", "run"), lease)
        store.record_step(make_step("agent", "other"), lease)

        store.settle_run(_ended(run), lease)

        assert store.steps("agent", "run") == []
        assert len(store.steps("agent", "other")) == 1

    def test_a_failed_run_keeps_its_steps_and_can_be_reopened(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        store.record_step(make_step("agent", "run"), lease)
        store.settle_run(_ended(run, RunStatus.FAILED, error="e"), lease)

        store.update_run(run.model_copy(update={"status": RunStatus.QUEUED}))

        assert [run.run_id for run in store.activity("agent").open] == ["run"]
        again, _ = _started(store, make_run("agent", "run"))
        assert (again.attempts, len(store.steps("agent", "run"))) == (2, 1)

    def test_a_finished_run_is_settled_by_the_next_lease_holder(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        finished = _ended(run, result={"x": 1})
        store.update_run(finished, lease)
        with pytest.raises(LeaseHeld):
            store.start_run(make_run("agent", "run"), "late", LONG_TTL)

        again, newer = _started(store, make_run("agent", "run"), over=lease)

        assert again == finished
        with pytest.raises(LeaseLost):
            store.settle_run(finished, lease)
        store.settle_run(finished, newer)
        assert store.run("agent", "run") == _ended(finished, delivered=True)

    def test_a_checkpoint_and_the_end_of_its_run_are_written_atomically(
        self, store: CheckpointStore
    ) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        checkpoint = make_checkpoint("agent")

        store.save(checkpoint, lease, run=_ended(run, result="r"))
        store.save(checkpoint, lease, run=_ended(run, result="r"))

        assert store.load_latest("agent") == checkpoint
        assert store.run("agent", "run") == _ended(run, result="r")

    def test_a_refused_save_does_not_change_its_run(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        newest, newer = _started(store, make_run("agent", "run"), over=lease)

        with pytest.raises(LeaseLost):
            store.save(make_checkpoint("agent"), lease, run=_ended(run))
        with pytest.raises(RunNotFound):
            store.save(make_checkpoint("agent"), newer, run=make_run("agent", "none"))
        assert store.run("agent", "run") == newest
        assert store.load_latest("agent") is None

    def test_a_run_over_the_limit_is_refused(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        store.max_checkpoint_bytes = 2000  # type: ignore[attr-defined]
        big = _ended(run, result="x" * 3000)

        with pytest.raises(CheckpointTooLarge):
            store.save(make_checkpoint("agent"), lease, run=big)
        with pytest.raises(CheckpointTooLarge):
            store.settle_run(big, lease)
        with pytest.raises(CheckpointTooLarge):
            store.release(lease, run=big)
        assert store.run("agent", "run") == run

    def test_cancelling_fences_off_the_attempt_at_work(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))

        cancelling = store.cancel_run("agent", "run", "me", LONG_TTL)

        assert cancelling is not None
        assert cancelling.token == lease.token + 1
        with pytest.raises(LeaseLost):
            store.save(make_checkpoint("agent"), lease, run=_ended(run))
        cancelled = store.run("agent", "run")
        assert cancelled == _ended(run, RunStatus.CANCELLED)
        assert store.settle_run(cancelled, cancelling) is None
        assert store.holder("agent") is None

    def test_cancelling_a_blocked_run_does_not_change_the_active_one(
        self, store: CheckpointStore
    ) -> None:
        first, lease = _started(store, make_run("agent", "first"))
        store.start_run(make_run("agent", "second"), "worker", LONG_TTL)

        assert store.cancel_run("agent", "second", "me", LONG_TTL) is None
        second = store.run("agent", "second")
        assert second is not None
        assert second.status is RunStatus.CANCELLED
        assert store.settle_run(second) is None

        store.save(make_checkpoint("agent"), lease)
        assert store.settle_run(_ended(first), lease) is None

    def test_a_run_that_has_ended_cannot_be_cancelled(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))
        store.update_run(_ended(run), lease)

        with pytest.raises(RunOver, match="succeeded"):
            store.cancel_run("agent", "run", "me", LONG_TTL)
        with pytest.raises(RunNotFound):
            store.cancel_run("agent", "none", "me", LONG_TTL)
        with pytest.raises(RunNotFound):
            store.cancel_run("unknown", "none", "me", LONG_TTL)
        store.settle_run(_ended(run), lease)

    def test_a_cancellation_with_an_invalid_lease_cancels_nothing(self, store: CheckpointStore) -> None:
        run, lease = _started(store, make_run("agent", "run"))

        with pytest.raises(ValueError, match="A lease of 0 seconds"):
            store.cancel_run("agent", "run", "me", 0)
        with pytest.raises(ValueError, match="owner"):
            store.cancel_run("agent", "run", "", LONG_TTL)
        assert store.run("agent", "run") == run
        assert store.holder("agent") == lease

    def test_an_unknown_run_that_has_ended_is_added_when_it_is_delivered(
        self, store: CheckpointStore
    ) -> None:
        ended = _ended(make_run("agent", "run"), result=1)

        run, lease = _started(store, ended)

        assert run == ended
        assert store.activity("agent").open == [ended]
        assert store.settle_run(run, lease) is None
        settled = _ended(make_run("agent", "other"), delivered=True)
        assert store.start_run(settled, "worker", LONG_TTL).lease is None

    def test_a_run_keeps_any_delivery_tag(self, store: CheckpointStore) -> None:
        for name in ("-", "%2D", " ", "", "ü 🎈\n"):
            run, lease = _started(store, make_run("agent", f"run {name}", delivery=name))
            assert run.delivery == name
            assert store.run("agent", run.run_id) == run
            store.settle_run(_ended(run), lease)

    def test_activity_lists_the_open_runs_in_order(self, store: CheckpointStore) -> None:
        for name in ("c", "a", "b"):
            store.add_run(make_run("agent", name))
        run, lease = _started(store, make_run("agent", "c"))

        activity = store.activity("agent")

        assert [run.run_id for run in activity.open] == ["c", "a", "b"]
        assert (activity.active, activity.holder, activity.count) == ("c", lease, 3)
        assert 0 < activity.seconds_left <= LONG_TTL
        store.settle_run(_ended(run), lease)
        assert [run.run_id for run in store.activity("agent").open] == ["a", "b"]
        assert store.activity("unknown").open == []

    def test_settling_an_unknown_run_is_an_error(self, store: CheckpointStore) -> None:
        with pytest.raises(RunNotFound):
            store.settle_run(make_run("agent", "run"))
        assert list(store.agents()) == []
        assert store.count_due(Schedule.SWEEP) == 0, "no agent is due for a sweep"

    # -- the order of sending ------------------------------------------------------------------------

    def test_the_run_that_was_sent_first_gets_the_turn(self, store: CheckpointStore) -> None:
        _send(store, "first", "second", "third")

        start = store.start_run(make_run("agent", "third", delivery="t"), "worker", LONG_TTL)

        assert (start.lease, start.run.status, start.run.delivery) == (None, RunStatus.BLOCKED, "t")
        assert start.next is not None
        assert (start.next.run_id, start.next.status) == ("first", RunStatus.QUEUED)
        assert store.run("agent", "first") == start.next
        assert store.activity("agent").active == "first"
        # It is published once: the others are blocked behind the active run.
        other = store.start_run(make_run("agent", "second"), "worker", LONG_TTL)
        assert (other.lease, other.next) == (None, None)
        assert _worked_off(store, "first") == ["first", "second", "third"]

    def test_a_run_that_was_overtaken_is_published_when_its_turn_comes(
        self, store: CheckpointStore
    ) -> None:
        _send(store, "first", "second", "third")
        first, lease = _started(store, make_run("agent", "first"))
        store.start_run(make_run("agent", "third"), "worker", LONG_TTL)

        second = store.settle_run(_ended(first), lease)

        assert second is not None
        assert (second.run_id, second.status) == ("second", RunStatus.QUEUED)
        assert store.activity("agent").active == "second"

    def test_a_run_whose_message_is_expected_is_not_published_again(
        self, store: CheckpointStore
    ) -> None:
        _send(store, "first", "second", "third")
        first, lease = _started(store, make_run("agent", "first"))

        assert store.settle_run(_ended(first), lease) is None
        assert store.activity("agent").active is None
        _started(store, make_run("agent", "second"))

    def test_the_prefetched_message_and_its_copy_start_one_attempt(
        self, store: CheckpointStore
    ) -> None:
        _send(store, "first", "second")
        assert store.start_run(make_run("agent", "second"), "worker", LONG_TTL).next is not None

        first, lease = _started(store, make_run("agent", "first"))
        with pytest.raises(LeaseHeld):
            store.start_run(make_run("agent", "first"), "other", LONG_TTL)
        assert store.settle_run(_ended(first), lease) is not None
        copy = store.start_run(make_run("agent", "first"), "other", LONG_TTL)

        assert (copy.lease, copy.next, copy.run.attempts) == (None, None, 1)
        assert store.activity("agent").active == "second"

    def test_a_run_with_a_later_eta_blocks_nobody_and_takes_its_place_when_it_is_due(
        self, store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        eta = _now(clock) + timedelta(seconds=0.3)
        store.add_run(make_run("agent", "delayed", eta=eta))
        _send(store, "second", "third")
        second, lease = _started(store, make_run("agent", "second"))
        store.start_run(make_run("agent", "third"), "worker", LONG_TTL)
        stored = store.run("agent", "delayed")
        assert stored is not None
        assert stored.eta == eta

        _wait_until(clock, eta)
        following = store.settle_run(_ended(second), lease)

        assert following is not None
        assert following.run_id == "delayed"

    def test_a_run_that_is_not_due_is_never_given_the_turn(
        self, store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        store.add_run(make_run("agent", "delayed", eta=_now(clock) + timedelta(days=1)))
        expired = make_run("agent", "expired", expires_at=_now(clock) - timedelta(seconds=1))
        store.add_run(expired)
        _send(store, "cancelled", "last")
        store.cancel_run("agent", "cancelled", "me", LONG_TTL)
        assert store.run("agent", "expired") == expired

        last, lease = _started(store, make_run("agent", "last"))
        store.start_run(make_run("agent", "unknown"), "worker", LONG_TTL)
        following = store.settle_run(_ended(last), lease)

        assert following is not None
        assert following.run_id == "unknown"

    def test_a_delivered_run_starts_although_the_store_considers_it_early_or_expired(
        self, store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        early, late = _now(clock) + timedelta(hours=1), _now(clock) - timedelta(hours=1)
        for name, fields in (("early", {"eta": early}), ("expired", {"expires_at": late})):
            store.add_run(make_run("agent", name, **fields))
            run, lease = _started(store, make_run("agent", name))
            assert store.settle_run(_ended(run), lease) is None

    def test_an_eta_and_an_expiry_apply_only_before_the_first_attempt(
        self, store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        expires_at = _now(clock) + timedelta(seconds=0.3)
        store.add_run(make_run("agent", "first", expires_at=expires_at))
        first, lease = _started(store, make_run("agent", "first"))
        store.release(lease, run=first.model_copy(update={"status": RunStatus.QUEUED}))
        _wait_until(clock, expires_at)

        start = store.start_run(make_run("agent", "second"), "worker", LONG_TTL)

        assert (start.lease, start.run.status) == (None, RunStatus.BLOCKED)
        assert store.activity("agent").active == "first"

    def test_the_turn_of_a_run_that_no_worker_begins_is_passed_on(self, store: CheckpointStore) -> None:
        _send(store, "unrouted", "second", "third")
        assert store.start_run(make_run("agent", "second"), "worker", LONG_TTL).next is not None

        assert store.pass_turn("agent", "unrouted", LONG_TTL) is None, "it has the turn since just now"
        assert store.pass_turn("agent", "second", 0) is None, "it is not the active run"
        assert store.pass_turn("agent", "none", 0) is None
        assert store.pass_turn("nobody", "none", 0) is None
        second = store.pass_turn("agent", "unrouted", 0)

        assert second is not None
        assert (second.run_id, second.status) == ("second", RunStatus.QUEUED)
        passed = store.run("agent", "unrouted")
        assert passed is not None
        assert (passed.passed_over, passed.status) == (True, RunStatus.QUEUED)
        # It blocks no other run any more.
        second, lease = _started(store, make_run("agent", "second"))
        assert store.settle_run(_ended(second), lease) is None
        third, lease = _started(store, make_run("agent", "third"))
        # Until it is delivered.
        start = store.start_run(make_run("agent", "unrouted"), "worker", LONG_TTL)
        assert (start.run.status, start.run.passed_over) == (RunStatus.BLOCKED, False)
        following = store.settle_run(_ended(third), lease)
        assert following is not None
        assert following.run_id == "unrouted"

    def test_the_only_run_is_not_passed_over(
        self, store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        _send(store, "first", "second")
        store.start_run(make_run("agent", "second"), "worker", LONG_TTL)
        store.cancel_run("agent", "second", "me", LONG_TTL)
        store.add_run(make_run("agent", "delayed", eta=_now(clock) + timedelta(days=1)))

        assert store.pass_turn("agent", "first", 0) is None
        first = store.run("agent", "first")
        assert first is not None
        assert (first.passed_over, store.activity("agent").active) == (False, "first")

    def test_a_run_that_has_begun_is_not_passed_over(self, store: CheckpointStore) -> None:
        _send(store, "first", "second")
        first, lease = _started(store, make_run("agent", "first"))
        store.start_run(make_run("agent", "second"), "worker", LONG_TTL)
        assert store.pass_turn("agent", "first", 0) is None
        store.release(lease, run=first.model_copy(update={"status": RunStatus.QUEUED}))

        assert store.pass_turn("agent", "first", 0) is None
        assert store.activity("agent").active == "first"

    def test_an_older_run_takes_the_turn_of_a_younger_one_that_has_not_begun(
        self, store: CheckpointStore
    ) -> None:
        _send(store, "first", "second")
        store.start_run(make_run("agent", "second"), "worker", LONG_TTL)
        assert store.pass_turn("agent", "first", 0) is not None

        first, lease = _started(store, make_run("agent", "first"))

        second = store.run("agent", "second")
        assert second is not None
        assert (first.passed_over, second.status) == (False, RunStatus.BLOCKED)
        assert store.activity("agent").active == "first"
        following = store.settle_run(_ended(first), lease)
        assert following is not None
        assert following.run_id == "second"

    def test_a_start_that_is_refused_gives_no_turn_away(self, store: CheckpointStore) -> None:
        _send(store, "first", "second")
        store.start_run(make_run("agent", "second"), "worker", LONG_TTL)
        assert store.pass_turn("agent", "first", 0) is not None
        lease = store.acquire("agent", "a tool", LONG_TTL)

        with pytest.raises(LeaseHeld):
            store.start_run(make_run("agent", "first"), "worker", LONG_TTL)

        assert store.activity("agent").active == "second"
        store.release(lease)
        _started(store, make_run("agent", "second"))

    def test_an_attempt_leaves_its_trace_context_to_the_next(self, store: CheckpointStore) -> None:
        run, traces = make_run("agent", "run"), ["00-aa-bb-01", "", "00-cc-dd 'x'-01"]
        before = ""
        for trace in traces:
            start = store.start_run(run.model_copy(update={"trace": trace}), "owner", LONG_TTL)
            assert start.lease is not None
            assert (start.trace_before, start.run.trace) == (before, trace)
            assert store.run("agent", "run") == start.run
            store.release(start.lease, run=start.run)
            before = trace


def _send(store: CheckpointStore, *names: str) -> None:
    for name in names:
        store.add_run(make_run("agent", name))


def _worked_off(store: CheckpointStore, name: str) -> list[str]:
    """Start and settle a run, and each one that must be published then. Return their ids."""
    worked: list[str] = []
    following: str | None = name
    while following is not None:
        run, lease = _started(store, make_run("agent", following))
        worked.append(run.run_id)
        given = store.settle_run(_ended(run), lease)
        following = given.run_id if given else None
    return worked


def _now(clock: FakeClock | None) -> datetime:
    return datetime.now(UTC) if clock is None else clock.now()


def _wait_until(clock: FakeClock | None, time: datetime) -> None:
    if clock is not None:
        clock.advance((time - clock.now()).total_seconds() + 0.001)
    while _now(clock) <= time + timedelta(milliseconds=1 if clock is None else 0):
        sleep(0.01)
