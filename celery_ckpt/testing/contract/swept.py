"""A sweep for the contract: done by hand, a piece at a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.retention.policy import Rules, judge
from celery_ckpt.retention.report import Rounds, Verdict
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_message, make_run

SWEEP = Rounds.SWEEP


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
) -> list[Verdict]:
    """What a sweep decides about all that it is told of."""
    found = store.due(100, LONG_TTL, SWEEP)
    sights = store.sights([name for name, _ in found])
    now = system_clock.now() + later
    return [
        judge(sight, rules or Rules(keep=None), now, moment, retry)
        for sight, (_, moment) in zip(sights, found, strict=True)
    ]


def sweep(store: CheckpointStore, rules: Rules | None = None) -> list[str]:
    """Sweep once; returns the agents that it was told of."""
    verdicts = judged(store, rules)
    store.carry_out(verdicts)
    return sorted(verdict.sight.agent_id for verdict in verdicts)
