"""A sweep for the contract: done by hand, a piece at a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.records import RunRecord, RunStatus, Schedule
from celery_ckpt.retention.policy import Rules, judge
from celery_ckpt.retention.report import PrunePlan
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_message, make_run

SWEEP = Schedule.SWEEP


def saved(
    store: CheckpointStore, agent_id: str, count: int, after: Checkpoint | None = None
) -> list[Checkpoint]:
    """Save so many checkpoints of a growing conversation; oldest first."""
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
    """Let a run be over since then, whether it was known before or not."""
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
    """What a sweep decides about all that it is told of."""
    found = store.claim_due(100, LONG_TTL, SWEEP)
    snapshots = store.snapshots([name for name, _ in found])
    now = system_clock.now() + later
    return [
        judge(snapshot, rules or Rules(keep=None), now, due_at, retry)
        for snapshot, (_, due_at) in zip(snapshots, found, strict=True)
    ]


def sweep(store: CheckpointStore, rules: Rules | None = None) -> list[str]:
    """Sweep once; returns the agents that it was told of."""
    plans = judged(store, rules)
    store.apply(plans)
    return sorted(plan.snapshot.agent_id for plan in plans)
