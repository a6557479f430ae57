"""The run and the attempt that the present code works for; also across threads of an async body."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery_ckpt.errors import NoCurrentRun
from celery_ckpt.run.agent_run import AgentRun

if TYPE_CHECKING:
    from celery_ckpt.runtime.attempt.attempt import Attempt

_run: ContextVar[AgentRun | None] = ContextVar("celery_ckpt_run", default=None)
_attempt: ContextVar[Attempt | None] = ContextVar("celery_ckpt_attempt", default=None)
_request: ContextVar[Any] = ContextVar("celery_ckpt_request", default=None)


def current_run() -> AgentRun:
    """The run whose body is being executed.

    Raises:
        NoCurrentRun: no body of an agent task is.
    """
    run = run_if_any()
    if run is None:
        raise NoCurrentRun()
    return run


def run_if_any() -> AgentRun | None:
    """The same, or ``None``."""
    return _run.get()


def current_attempt() -> Attempt | None:
    """The attempt that is being made; ``None`` outside, and in a body that was called directly."""
    return _attempt.get()


def current_request(task: Any) -> Any:
    """The request of that task's current run; ``None`` if the run is not that task's."""
    run = _run.get()
    return _request.get() if run is not None and run.task is task else None


@contextmanager
def working_for(run: AgentRun, attempt: Attempt | None) -> Iterator[None]:
    """Let that be the current run meanwhile."""
    request = run.task.request if attempt is None else attempt.request
    tokens = _run.set(run), _attempt.set(attempt), _request.set(request)
    try:
        yield
    finally:
        _run.reset(tokens[0])
        _attempt.reset(tokens[1])
        _request.reset(tokens[2])
