"""Cancelling runs: first in the record, then in Celery, then settled; in no other order."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.errors import LeaseError, RunOver
from celery_ckpt.event_log import LogEntry
from celery_ckpt.records import Lease, RunRecord
from celery_ckpt.run.position import metadata_of_run
from celery_ckpt.run.tool_results import repaired
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.attempt.backend import CANCELLED, store_cancelled
from celery_ckpt.runtime.attempt.settlement import publish_next
from celery_ckpt.runtime.process.context import AppContext

logger = logging.getLogger(__name__)


def cancel_runs(context: AppContext, agent_id: str, log: Sequence[LogEntry] = ()) -> list[str]:
    """Cancel all runs of an agent that have not ended. Return their ids.

    The entries are appended to the event log with the first run that is cancelled.
    """
    cancelled: list[str] = []
    tried: set[str] = set()
    while True:
        activity = context.store.activity(agent_id)
        runs = [run for run in activity.open if run.run_id not in tried]
        # The active run last: until it is settled, none of the others can begin.
        runs.sort(key=lambda run: run.run_id == activity.active)
        has_more = activity.count > len(activity.open)
        if has_more and len(runs) > 1 and runs[-1].run_id == activity.active:
            runs.pop()
        if runs:
            # If this process dies here, the watchdog does the rest.
            context.store.schedule(agent_id, context.settings.lease_ttl)
        for run in runs:
            if _cancel(context, run, () if cancelled else log):
                cancelled.append(run.run_id)
        tried.update(run.run_id for run in runs)
        if not runs or not has_more:
            return cancelled


def _cancel(context: AppContext, run: RunRecord, log: Sequence[LogEntry]) -> bool:
    """Cancel a run. False if it has ended."""
    store, ttl, noted = context.store, context.settings.lease_ttl, {"log": log} if log else {}
    try:
        lease = store.cancel_run(run.agent_id, run.run_id, context.owner, ttl, **noted)
    except RunOver:
        return False
    try:
        _settle(context, run, lease)
    except LeaseError:
        # This took longer than the lease lasts, and the watchdog has done the rest.
        logger.warning(log_lines.SETTLED_ELSEWHERE, *log_lines.identity(run))
    return True


def _settle(context: AppContext, run: RunRecord, lease: Lease | None) -> None:
    if lease is not None:
        _repair_conversation(context, run, lease)
    store_cancelled(context.app, run)
    cancelled = context.store.run(run.agent_id, run.run_id)
    if cancelled is not None:
        ended = cancelled.model_copy(update={"ended_at": system_clock.now()})
        publish_next(context, context.store.settle_run(ended, lease))


def _repair_conversation(context: AppContext, run: RunRecord, lease: Lease) -> None:
    """Save a conversation that providers accept: without unanswered tool calls."""
    latest = context.store.load_latest(run.agent_id)
    if latest is None or latest.run_id != run.run_id or not latest.conversation.pending_tool_calls():
        return
    whole = Checkpoint.new(
        run.agent_id,
        repaired(latest.conversation, "take_back"),
        latest.iteration,
        state=latest.entry.state if latest.entry else latest.state,
        run_id=run.run_id,
        metadata={**metadata_of_run(latest), "reason": CANCELLED},
        run_metadata=metadata_of_run(latest),
    )
    context.store.save(whole, lease)
