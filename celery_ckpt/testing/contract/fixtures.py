"""What the parts of the contract share: fixtures, and the steps of a sweep as functions."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.records import RunRecord, RunStatus, Schedule
from celery_ckpt.retention.policy import Rules, judge
from celery_ckpt.retention.report import PrunePlan
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_message, make_run

#: How long a short lease lasts where the store has no ``FakeClock``.
SHORT_TTL = 0.05
LONG_TTL = 600.0
_DEADLINE = 10.0
SWEEP = Schedule.SWEEP


class ContractFixtures:
    """The fixtures of the contract. A subclass must replace ``store``, and may replace the others."""

    @pytest.fixture
    def store(self) -> CheckpointStore:
        """Return an empty store."""
        raise NotImplementedError("define a `store` fixture that returns an empty store")

    @pytest.fixture
    def other_store(self, store: CheckpointStore) -> CheckpointStore:
        """Return another store object on the same data."""
        return store

    @pytest.fixture
    def clock(self) -> FakeClock | None:
        """Return the clock of the store, if a test can move it."""
        return None


def pass_time(store: CheckpointStore, agent_id: str, clock: FakeClock | None) -> None:
    """Wait until the agent's lease has expired."""
    if clock is not None:
        clock.advance(SHORT_TTL + 1)
    deadline = time.monotonic() + _DEADLINE
    while store.holder(agent_id) is not None:
        assert time.monotonic() < deadline, "the lease did not expire"
        time.sleep(SHORT_TTL / 10)


def saved(
    store: CheckpointStore, agent_id: str, count: int, after: Checkpoint | None = None
) -> list[Checkpoint]:
    """Save ``count`` checkpoints of a growing conversation, and return them, oldest first."""
    latest = after or store.load_latest(agent_id)
    conversation, history = latest.conversation if latest else make_conversation(1), []
    for _ in range(count):
        conversation.append(make_message())
        history.append(make_checkpoint(agent_id, conversation))
        store.save(history[-1])
    return history


def settled(
    store: CheckpointStore,
    agent_id: str,
    run_id: str,
    ended_at: datetime | None,
    status: RunStatus = RunStatus.SUCCEEDED,
    **fields: Any,
) -> RunRecord:
    """Settle a run that ended at ``ended_at``. Adds the run if the store does not know it."""
    outcome = {"status": status, "ended_at": ended_at, **fields}
    run = make_run(agent_id, run_id).model_copy(update=outcome)
    store.add_run(make_run(agent_id, run_id))
    store.settle_run(run)
    return run


def judged(
    store: CheckpointStore,
    rules: Rules | None = None,
    *,
    retry: float = LONG_TTL,
    later: timedelta = timedelta(0),
) -> list[PrunePlan]:
    """Claim the agents that are due for a sweep, and return what the sweep decides about each."""
    found = store.claim_due(100, LONG_TTL, SWEEP)
    snapshots = store.snapshots([name for name, _ in found])
    now = system_clock.now() + later
    return [
        judge(snapshot, rules or Rules(keep=None), now, due_at, retry)
        for snapshot, (_, due_at) in zip(snapshots, found, strict=True)
    ]


def sweep(store: CheckpointStore, rules: Rules | None = None) -> list[str]:
    """Sweep once, and return the names of the agents that were due."""
    plans = judged(store, rules)
    store.apply(plans)
    return sorted(plan.snapshot.agent_id for plan in plans)
