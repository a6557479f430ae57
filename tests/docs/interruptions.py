"""Interrupts the agents of one module at every point, in a separate process.

    interruptions.py '{"module": "tasks", "bodies": ["think"], "wrong": [], "prepare": "", ...}'

It prints for each agent how often it was killed and handed off, or which mistake was found.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import time
import types
import typing
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

from celery_ckpt.testing import crash_everywhere

#: The argument that an agent is called with, by the annotation of the parameter.
ARGUMENTS: dict[Any, Any] = {
    str: "why is the sky blue?",
    int: 3,
    list[int]: [1, 2, 3],
    list[str]: ["Oslo", "Rome"],
}
#: Fields that providers and SDKs generate for each reply.
_VOLATILE = {"id", "call_id", "tool_call_id", "tool_use_id", "created"}


async def _sleep(seconds: float, *_: object) -> None:
    await asyncio.sleep(0)


def _instead(module: types.ModuleType, **changes: Callable[..., object]) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(module), **changes})


#: Replacements by name in the module, for functions that are slow or not deterministic.
STAND_INS = {
    "time": _instead(time, sleep=lambda seconds: None, time=lambda: 1_700_000_000.0),
    "asyncio": _instead(asyncio, sleep=_sleep),
    "uuid4": lambda: UUID(int=4711),
}


def arguments(task: Any) -> list[Any]:
    """Return an argument for each parameter of a body that has no default, except its run."""
    body = inspect.unwrap(task.run)
    hints = typing.get_type_hints(body)
    _, *own = inspect.signature(body).parameters.values()
    return [ARGUMENTS[hints[one.name]] for one in own if one.default is one.empty]


def same(end: dict[str, Any]) -> dict[str, Any]:
    """Return the end of a run without values that differ in each run."""
    messages = [message.to_dict() for message in end["conversation"] or ()]
    return {**end, "conversation": stable(messages)}


def stable(value: Any) -> Any:
    """Return JSON without volatile fields."""
    if isinstance(value, dict):
        return {key: stable(inner) for key, inner in value.items() if key not in _VOLATILE}
    return [stable(inner) for inner in value] if isinstance(value, list) else value


def interrupted(task: Any, is_wrong: bool) -> dict[str, Any]:
    """Interrupt an agent at every point. Return the outcome."""
    try:
        return asdict(crash_everywhere(task, arguments(task), same=same))
    except AssertionError as error:
        if not is_wrong:
            raise
        return {"found": str(error)}


def main() -> None:
    """Interrupt the agents that the argument of the program names."""
    order = json.loads(sys.argv[1])
    exec(order["prepare"], {})
    module = importlib.import_module(order["module"])
    vars(module).update({name: STAND_INS[name] for name in STAND_INS if name in vars(module)})
    reports = {}
    for name in order["bodies"]:
        try:
            reports[name] = interrupted(getattr(module, name), name in order["wrong"])
        except BaseException as error:
            error.add_note(f"The body is {name} of {order['module']}.")
            raise
    Path(order["reports"]).write_text(json.dumps(reports), encoding="utf-8")
