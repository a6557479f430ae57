"""The run that the present code works for, also in other threads and tasks of its body."""

from __future__ import annotations

from contextvars import ContextVar

from celery_ckpt.errors import NoCurrentRun
from celery_ckpt.run.agent_run import AgentRun

#: Set while a body is executed.
running: ContextVar[AgentRun | None] = ContextVar("celery_ckpt_run", default=None)


def current_run() -> AgentRun:
    """Return the run whose body is being executed.

    Raises:
        NoCurrentRun: the body of an agent task is not being executed.
    """
    run = running.get()
    if run is None:
        raise NoCurrentRun()
    return run


def run_if_any() -> AgentRun | None:
    """Return the run whose body is being executed, or ``None`` outside a body."""
    return running.get()
