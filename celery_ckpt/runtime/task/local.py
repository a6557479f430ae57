"""A body that was called directly, or eagerly: everything works, and nothing is kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery._state import _task_stack
from celery.app.task import Context
from celery.utils import uuid

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.errors import NoCurrentRun
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.names import checked_name
from celery_ckpt.records import Step
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.bridge import AsyncBridge, SyncBridge
from celery_ckpt.run.current import current_run
from celery_ckpt.run.redaction import Redaction
from celery_ckpt.runtime import phrases, signals
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.broker.envelope import agent_id_of
from celery_ckpt.runtime.current import working_for
from celery_ckpt.runtime.settings import Settings
from celery_ckpt.usage import Usage

logger = logging.getLogger(__name__)


class LocalHost:
    """A host without a store."""

    queue_errors = Attempt.queue_errors

    def __init__(self, task: Any) -> None:
        self._task = task
        self._lock = threading.RLock()

    def record(self, step: Step, paid: Usage) -> None:
        """Nobody will replay it."""

    def emit(self, run: AgentRun, event: CheckpointEvent) -> None:
        """Tell whoever listens."""
        with self._lock:
            signals.checkpoint_event.send(sender=self._task, run=run, event=event)

    def save(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        """There is nowhere to save it."""

    def check(self, run: AgentRun) -> None:
        """Nothing stops it."""

    def iteration_ended(self, run: AgentRun) -> None:
        """It goes on."""

    def changed(self, run: AgentRun, name: str) -> None:
        """Nothing was recorded that could have changed."""

    def cost_failed(self, run: AgentRun, error: Exception) -> None:
        """Say so."""
        who = phrases.shown(run.agent_id), phrases.shown(self._task.name), phrases.shown(run.run_id)
        logger.warning(phrases.COST_NOT_COMPUTED, *who, f"{type(error).__name__}: {error}")


def call_directly(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``Task.__call__`` does, but with a request that has nothing of the caller's."""
    _task_stack.push(task)
    task.request_stack.push(Context(args=args, kwargs=kwargs))
    try:
        return run_locally(task, lambda: task.run(*args, **kwargs))
    finally:
        task.request_stack.pop()
        _task_stack.pop()


def run_locally(task: Any, body: Callable[[], Any]) -> Any:
    """Execute a body here and now."""
    request = task.request
    run_id = request.id or _id_of_call(task)
    agent_id = checked_name(agent_id_of(request, run_id))
    bridge = AsyncBridge() if task.is_async else SyncBridge()
    attempt = (request.retries or 0) + 1
    settings = Settings.of(task.app)
    run = AgentRun(
        agent_id,
        run_id,
        attempt,
        LocalHost(task),
        bridge,
        None,
        [],
        task=task,
        redaction=Redaction(settings.redact),
        cost=settings.cost,
    )
    with working_for(run, None):
        value = body()
    run.flush_tool_results()
    return value


def _id_of_call(task: Any) -> str:
    """Called by another run's body it is the same in every attempt at that, like a key of it."""
    try:
        return current_run().idempotency_key(f"call of {task.name}")
    except NoCurrentRun:
        return uuid()
