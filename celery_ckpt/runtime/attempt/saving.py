"""The receiver that saves: the library's own part in ``signals.checkpoint_event``."""

from __future__ import annotations

from typing import Any

from celery_ckpt.events import CheckpointEvent
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.current import current_attempt
from celery_ckpt.runtime import signals


def save_if_due(sender: Any, run: AgentRun, event: CheckpointEvent, **_: Any) -> None:
    """Take a checkpoint after this event, if the run's strategy says so."""
    attempt = current_attempt()
    if attempt is not None:
        attempt.save_if_due(run, event)


def connect() -> None:
    """Listen to the events of all runs."""
    signals.checkpoint_event.connect(save_if_due, weak=False, dispatch_uid="celery_ckpt.saving")
