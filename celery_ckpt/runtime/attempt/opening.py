"""An attempt's run, with what was stored of it."""

from __future__ import annotations

import logging

from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.bridge import AsyncBridge, SyncBridge
from celery_ckpt.run.tool_results import repaired
from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.process.retry import retry_while_unavailable

logger = logging.getLogger(__name__)


def opened_run(attempt: Attempt) -> AgentRun:
    """The run as its body will see it: with the latest checkpoint and the recorded steps."""
    record, store = attempt.run_record, attempt.context.store
    agent_id, run_id, patience = record.agent_id, record.run_id, attempt.context.settings.lease_ttl
    has_nothing = record.attempts == 1 and record.progress.startswith("0.")
    latest = (
        None if has_nothing else retry_while_unavailable(lambda: store.load_latest(agent_id), patience)
    )
    is_first = record.attempts == 1
    steps = [] if is_first else retry_while_unavailable(lambda: store.steps(agent_id, run_id), patience)
    attempt.resumes_from(latest)
    bridge = AsyncBridge() if attempt.task.is_async else SyncBridge()
    who, redaction = (agent_id, run_id, record.attempts), attempt.context.redaction
    run = AgentRun(
        *who,
        attempt,
        bridge,
        latest,
        steps,
        task=attempt.task,
        redaction=redaction,
        cost=attempt.context.settings.cost,
    )
    run.conversation = repaired(run.conversation, attempt.task.pending_calls)
    if run.resumed:
        how_far = record.attempts, run.iteration, len(steps)
        logger.info(phrases.RESUMED, *phrases.identity(record), *how_far)
    return run
