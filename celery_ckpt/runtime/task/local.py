"""A body that is called directly or eagerly: everything works, and nothing is stored."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery._state import _task_stack
from celery.app.task import Context
from celery.utils import uuid

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.names import checked_name
from celery_ckpt.records import Step
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.bridge import AsyncBridge, SyncBridge
from celery_ckpt.run.current import run_if_any
from celery_ckpt.run.host import Saved
from celery_ckpt.run.redaction import Redaction
from celery_ckpt.run.timed_call import TimedCall
from celery_ckpt.runtime import log_lines, signals
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.broker.envelope import agent_id_of
from celery_ckpt.runtime.current import working_for
from celery_ckpt.runtime.settings import Settings
from celery_ckpt.usage import Usage

logger = logging.getLogger(__name__)


class LocalHost:
    """A host without a store."""

    is_kept = False
    queue_errors = Attempt.queue_errors

    def __init__(self, task: Any) -> None:
        self._task = task
        self._lock = threading.RLock()

    def around(self, call: TimedCall) -> AbstractContextManager[None]:
        """Do nothing: a local run has no event log."""
        return nullcontext()

    def replayed(self, call: TimedCall) -> None:
        """Do nothing: no call is replayed."""

    def record(self, step: Step, paid: Usage, call: TimedCall | None) -> None:
        """Do nothing: the step is never replayed."""

    def record_event(
        self,
        run: AgentRun,
        event: CheckpointEvent,
        step: Step,
        paid: Usage,
        call: TimedCall,
        snapshot: Callable[[], Checkpoint],
        keep: Callable[[], None],
    ) -> Saved:
        """Keep the result in the run."""
        keep()
        return None

    def emit_recorded(self, run: AgentRun, event: CheckpointEvent, saved: Saved) -> None:
        """Emit ``checkpoint_event``."""
        self.emit(run, event)

    def emit(self, run: AgentRun, event: CheckpointEvent) -> None:
        """Emit ``checkpoint_event``."""
        with self._lock:
            signals.checkpoint_event.send(sender=self._task, run=run, event=event)

    def save(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        """Do nothing: there is no store."""

    def check(self, run: AgentRun) -> None:
        """Do nothing: a local run does not stop."""

    def is_stopping(self, run: AgentRun) -> bool:
        """Return False: a local run does not stop."""
        return False

    def hand_off(self, run: AgentRun) -> None:
        """Do nothing: no other process can continue a local run."""

    def iteration_ended(self, run: AgentRun) -> None:
        """Do nothing: the run continues."""

    def changed(self, run: AgentRun, name: str, *, is_replayed: bool = False) -> None:
        """Do nothing: there are no recorded steps."""

    def cost_failed(self, run: AgentRun, error: Exception) -> None:
        """Log that the usage or the cost of a call is unknown."""
        identity = map(log_lines.shown, (run.agent_id, self._task.name, run.run_id))
        logger.warning(log_lines.COST_NOT_COMPUTED, *identity, f"{type(error).__name__}: {error}")


def call_directly(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what ``Task.__call__`` does, with a request that inherits nothing from the caller's."""
    _task_stack.push(task)
    task.request_stack.push(Context(args=args, kwargs=kwargs))
    try:
        return run_locally(task, lambda: task.run(*args, **kwargs))
    finally:
        task.request_stack.pop()
        _task_stack.pop()


def run_locally(task: Any, body: Callable[[], Any]) -> Any:
    """Execute a body in this process, without a store."""
    request = task.request
    run_id = request.id
    if not run_id:
        calling = run_if_any()
        # Called by the body of another run, it has the same id in every attempt of that run.
        run_id = calling.idempotency_key(f"call of {task.name}") if calling else uuid()
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
