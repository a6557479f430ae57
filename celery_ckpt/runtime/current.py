"""The attempt and the Celery request that the present code works for.

Context variables, not thread locals: the body of an async task runs in another thread than its task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.current import running

if TYPE_CHECKING:
    from celery_ckpt.runtime.attempt.attempt import Attempt

#: The attempt that executes the body; ``None`` in a body that was called directly.
attempting: ContextVar[Attempt | None] = ContextVar("celery_ckpt_attempt", default=None)
_request: ContextVar[Any] = ContextVar("celery_ckpt_request", default=None)


def current_attempt() -> Attempt | None:
    """Return the current attempt; ``None`` outside a body, and in one that was called directly."""
    return attempting.get()


def current_request(task: Any) -> Any:
    """Return the request of the current run, or ``None`` if that is not a run of this task."""
    run = running.get()
    return _request.get() if run is not None and run.task is task else None


@contextmanager
def working_for(run: AgentRun, attempt: Attempt | None) -> Iterator[None]:
    """Make this the current run and attempt inside the ``with`` block."""
    request = run.task.request if attempt is None else attempt.request
    tokens = running.set(run), attempting.set(attempt), _request.set(request)
    try:
        yield
    finally:
        running.reset(tokens[0])
        attempting.reset(tokens[1])
        _request.reset(tokens[2])
