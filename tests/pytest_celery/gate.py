"""A gate that holds a task until the test opens it. The workers of a setup get a copy of this file.

How soon a test learns what a worker does depends on the machine and on the engine. A task that only
sleeps may have ended by then. The gate is in the result backend, which both the test and the worker
reach.
"""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

_GATE = "gate"
#: Less than the time for which a connection to the result backend waits for a reply.
_PATIENCE = 100


def pass_gate(task: Task[..., Any]) -> None:
    """Wait until the gate is open."""
    # The token is put back: a gate stays open.
    if not task.backend.client.blmove(_GATE, _GATE, timeout=_PATIENCE):
        raise TimeoutError(f"the gate was not opened for {_PATIENCE} s")


def open_gate(task: Task[..., Any]) -> None:
    """Open the gate permanently. The test calls this."""
    task.backend.client.rpush(_GATE, "open")


@shared_task(bind=True)
def passing(self: Task[..., Any]) -> bool:
    """Return True when the gate is open."""
    pass_gate(self)
    return True
