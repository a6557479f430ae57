"""The Celery events that monitors of the cluster receive, one for each signal of an attempt.

Their types begin with ``agent-``, so they do not change the state that monitors derive from ``task-``
events. They contain no part of a conversation.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery.utils.dispatch import Signal

from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.runtime import log_lines, signals

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


def send_event(signal: Signal, attempt: Attempt, run: AgentRun | None) -> None:
    """Send the event that belongs to a signal. An error is only logged: no run depends on monitors."""
    kind, record = _EVENTS[signal], attempt.run_record
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
        logger.warning(log_lines.EVENT_NOT_SENT, *log_lines.identity(record), kind, error)
