"""A gate that holds a task until the test opens it; the workers of a setup get a copy of this file.

How soon a test learns what a worker does depends on the machine, and on how soon an engine answers:
a task that only sleeps may have ended by then. The result backend is what both have in common.
"""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

_GATE = "gate"
#: Less than a connection of the result backend waits for an answer.
_PATIENCE = 100


def pass_gate(task: Task[..., Any]) -> None:
    """Wait until the gate is open."""
    # What was put there is put back: a gate stays open.
    if not task.backend.client.blmove(_GATE, _GATE, timeout=_PATIENCE):
        raise TimeoutError(f"nobody opened the gate for {_PATIENCE} s")


def open_gate(task: Task[..., Any]) -> None:
    """Let everybody pass, now and later; for the test."""
    task.backend.client.rpush(_GATE, "open")


@shared_task(bind=True)
def passing(self: Task[..., Any]) -> bool:
    """True, once the gate is open."""
    pass_gate(self)
    return True
