"""Another task in the place of an agent's: ``replace`` gives it the same task id.

Two agents need two histories. The one that takes over is called after the task id and how often that
was handed on, unless it has a name; an agent's name alone would find the run that has just ended.
"""

from __future__ import annotations

from typing import Any

from celery.canvas import _chain, chord

from celery_ckpt.runtime.broker.envelope import AGENT_HEADER


def name_apart(signature: Any, request: Any) -> None:
    """Name the agent that is to have the request's task id."""
    heir = _heir(signature)
    if not heir.options.get("agent_id"):
        times = (request.replaced_task_nesting or 0) + 1
        headers = heir.options.get("headers") or {}
        heir.options["headers"] = {AGENT_HEADER: f"{request.id}/{times}", **headers}


def _heir(signature: Any) -> Any:
    """The part of a signature whose result is the result of all."""
    if isinstance(signature, _chain) and signature.tasks:
        return _heir(signature.tasks[-1])
    if isinstance(signature, chord) and signature.body is not None:
        return _heir(signature.body)
    return signature
