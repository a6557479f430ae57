"""Telling the world: signals in this process, and Celery events for whoever watches the cluster.

Events are called ``agent-...``: the state that monitors derive from ``task-...`` events stays as it is.
They hold no content of messages.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.utils.dispatch import Signal

from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.runtime import phrases, signals

if TYPE_CHECKING:
    from celery_ckpt.runtime.attempt.attempt import Attempt

logger = logging.getLogger(__name__)

_EVENTS = {
    signals.checkpoint_saved: "agent-checkpoint",
    signals.checkpoint_failed: "agent-checkpoint-failed",
    signals.agent_started: "agent-started",
    signals.agent_resumed: "agent-resumed",
    signals.agent_handed_off: "agent-handed-off",
    signals.agent_finished: "agent-finished",
    signals.lease_lost: "agent-lease-lost",
    signals.step_changed: "agent-step-changed",
}


def tell(signal: Signal, attempt: Attempt, run: AgentRun | None, **facts: Any) -> None:
    """Send a signal and, if the worker sends events at all, its event."""
    signal.send(sender=attempt.task, run=run, **facts)
    if attempt.context.sends_events:
        _send_event(_EVENTS[signal], attempt, run)


def _send_event(kind: str, attempt: Attempt, run: AgentRun | None) -> None:
    record = attempt.run_record
    try:
        attempt.task.send_event(
            kind,
            retry=False,
            agent_id=record.agent_id,
            attempt=record.attempts,
            iteration=run.iteration if run else 0,
            status=record.status.value,
        )
    except Exception as error:
        # Nobody's work depends on being watched.
        logger.warning(phrases.EVENT_NOT_SENT, *phrases.identity(record), kind, error)
