"""The contract of ``delete`` on open runs: the store knows a run that was deleted from a lost one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_ckpt.errors import LeaseHeld, LeaseLost, RunNotFound
from celery_ckpt.records import RunStatus, Schedule, StartResult
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.contract.fixtures import (
    LONG_TTL,
    SHORT_TTL,
    ContractFixtures,
    saved,
    settled,
    sweep,
)
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step

#: Seconds within which a marker of ``SHORT_TTL`` seconds expires on any store.
_DEADLINE = 10.0


def _delivered(store: CheckpointStore, agent_id: str, run_id: str, **fields: Any) -> StartResult:
    """Deliver the message of a run that says that the run was recorded."""
    return store.start_run(make_run(agent_id, run_id, **fields), "worker", LONG_TTL, recorded=True)


def _queued(store: CheckpointStore) -> None:
    store.add_run(make_run("agent", "run"))


def _running(store: CheckpointStore) -> None:
    store.start_run(make_run("agent", "run"), "worker", LONG_TTL)


def _blocked(store: CheckpointStore) -> None:
    store.start_run(make_run("agent", "first"), "worker", LONG_TTL)
    store.start_run(make_run("agent", "run"), "worker", LONG_TTL)


def _ended(store: CheckpointStore) -> None:
    store.add_run(make_run("agent", "run", status=RunStatus.SUCCEEDED))


def _cancelled(store: CheckpointStore) -> None:
    settled(store, "agent", "run", None, RunStatus.CANCELLED)


class DeletionContract(ContractFixtures):
    """A deletion leaves a marker for each open or cancelled run, and nothing else."""

    @pytest.mark.parametrize("add", [_queued, _running, _blocked, _ended, _cancelled])
    def test_an_open_or_cancelled_run_of_a_deleted_agent_does_not_start_again(
        self,
        store: CheckpointStore,
        other_store: CheckpointStore,
        add: Callable[[CheckpointStore], None],
    ) -> None:
        add(store)
        store.delete("agent")

        start = _delivered(other_store, "agent", "run", delivery="tag")

        assert (start.is_deleted, start.lease) == (True, None)
        assert (start.run.run_id, start.run.status) == ("run", RunStatus.CANCELLED)
        assert other_store.was_deleted("run")
        assert list(store.agents()) == []
        assert (store.runs("agent"), store.holder("agent")) == ([], None)

    def test_every_open_run_is_remembered(self, store: CheckpointStore) -> None:
        names = [f"run {number}" for number in range(20)]
        for name in names:
            store.add_run(make_run("agent", name))
        store.add_run(make_run("other", names[0]))
        store.delete("agent")

        assert all(_delivered(store, "agent", name).is_deleted for name in names)
        assert not _delivered(store, "other", names[0]).is_deleted, "this agent was not deleted"

    @pytest.mark.parametrize("status", [RunStatus.SUCCEEDED, RunStatus.FAILED])
    def test_a_run_whose_outcome_was_delivered_is_not_remembered(
        self, store: CheckpointStore, status: RunStatus
    ) -> None:
        settled(store, "agent", "run", None, status)
        store.delete("agent")

        assert not store.was_deleted("run")
        assert _delivered(store, "agent", "run").lease is not None

    def test_a_run_whose_record_was_lost_starts(self, store: CheckpointStore) -> None:
        start = _delivered(store, "agent", "run")

        assert (start.is_deleted, start.run.attempts) == (False, 1)
        assert start.lease is not None
        assert not store.was_deleted("run")

    def test_a_lost_run_that_had_begun_is_added_as_it_ended(self, store: CheckpointStore) -> None:
        failed = {"status": RunStatus.FAILED, "error": "lost"}
        start = _delivered(store, "agent", "run", **failed)

        assert (start.run.status, start.run.error, start.run.delivered) == ("failed", "lost", False)
        assert start.lease is not None
        assert store.activity("agent").open == [start.run]
        assert store.settle_run(start.run, start.lease) is None

        active = store.start_run(make_run("agent", "active"), "worker", LONG_TTL)
        with pytest.raises(LeaseHeld):
            _delivered(store, "agent", "other", **failed)
        assert store.run("agent", "other") is None, "a refused write changes nothing"
        assert store.holder("agent") == active.lease

    def test_the_name_of_a_deleted_agent_can_be_reused_at_once(self, store: CheckpointStore) -> None:
        for run_id in ("run", "other"):
            store.add_run(make_run("agent", run_id, task="old"))
        store.delete("agent")

        store.add_run(make_run("agent", "run", task="new"))
        start = _delivered(store, "agent", "run")
        assert (start.is_deleted, start.run.task, start.lease is None) == (False, "new", False)

        other = _delivered(store, "agent", "other")
        assert (other.is_deleted, other.lease) == (True, None)
        assert [run.run_id for run in store.runs("agent")] == ["run"]
        assert store.holder("agent") == start.lease

    def test_a_run_that_was_never_recorded_is_added_whatever_was_deleted(
        self, store: CheckpointStore
    ) -> None:
        store.add_run(make_run("agent", "run"))
        store.delete("agent")

        start = store.start_run(make_run("agent", "run"), "worker", LONG_TTL)

        assert (start.is_deleted, start.lease is None) == (False, False)

    def test_markers_expire(self, store: CheckpointStore, clock: FakeClock | None) -> None:
        store.add_run(make_run("agent", "run"))
        store.delete("agent", remember=SHORT_TTL)
        if clock is not None:
            assert store.was_deleted("run")
            clock.advance(SHORT_TTL + 1)
        deadline = time.monotonic() + _DEADLINE
        while store.was_deleted("run"):
            assert time.monotonic() < deadline, "the marker did not expire"
            time.sleep(SHORT_TTL / 10)

        assert _delivered(store, "agent", "run").lease is not None

    def test_no_marker_is_left_if_nothing_is_to_be_remembered(self, store: CheckpointStore) -> None:
        store.add_run(make_run("agent", "run"))
        store.delete("agent", remember=0)

        assert not store.was_deleted("run")
        with pytest.raises(ValueError, match="remember"):
            store.delete("agent", remember=-1)

    def test_deleting_again_keeps_the_marker(self, store: CheckpointStore) -> None:
        store.add_run(make_run("agent", "run"))
        store.delete("agent")
        store.add_run(make_run("other", "run 2"))
        store.delete("other")
        store.delete("agent")

        assert store.was_deleted("run")

    def test_markers_are_not_findings(self, store: CheckpointStore) -> None:
        store.add_run(make_run("agent", "run"))
        store.delete("agent")

        assert list(store.findings(repair=True)) == []
        assert store.was_deleted("run")

    def test_a_refused_write_leaves_nothing_of_a_deleted_agent(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        start = store.start_run(make_run("agent", "run"), "worker", LONG_TTL)
        lease = start.lease
        saved(store, "other", 1)
        store.delete("agent")
        store.unschedule({"agent": start.due_at})  # which the watchdog does

        # Another process has not seen the agent before.
        for each in (store, other_store):
            with pytest.raises(LeaseLost):
                each.save(make_checkpoint("agent"), lease)
            with pytest.raises(LeaseLost):
                each.record_step(make_step("agent", "run"), lease)
            with pytest.raises((LeaseLost, RunNotFound)):
                each.save(make_checkpoint("agent"), lease, run=start.run)
            with pytest.raises(RunNotFound):
                each.save(make_checkpoint("agent"), run=start.run)
            assert list(each.agents()) == ["other"]
            assert list(each.findings()) == []

    def test_a_sweep_forgets_an_agent_that_does_not_exist(self, store: CheckpointStore) -> None:
        store.schedule("unknown", 0, Schedule.SWEEP)

        assert sweep(store) == ["unknown"]

        assert store.count_due(Schedule.SWEEP) == 0
        assert list(store.findings()) == []
