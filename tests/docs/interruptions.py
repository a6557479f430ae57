"""Interrupts the agents of one module everywhere, in a process of its own.

    python interruptions.py '{"module": "tasks", "bodies": ["think"], "wrong": [], "prepare": "", ...}'

Writes down for each agent how often it was killed and handed off, or how it was found to be wrong.
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

#: What an agent is called with, by the annotation of the parameter.
ARGUMENTS: dict[Any, Any] = {
    str: "why is the sky blue?",
    int: 3,
    list[int]: [1, 2, 3],
    list[str]: ["Oslo", "Rome"],
}
#: What providers, and SDKs, make up anew for each answer.
_VOLATILE = {"id", "call_id", "tool_call_id", "tool_use_id", "created"}


async def _sleep(seconds: float, *_: object) -> None:
    await asyncio.sleep(0)


def _instead(module: types.ModuleType, **changes: Callable[..., object]) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(module), **changes})


#: By its name in the module: what is slow, or differs by nature.
STAND_INS = {
    "time": _instead(time, sleep=lambda seconds: None, time=lambda: 1_700_000_000.0),
    "asyncio": _instead(asyncio, sleep=_sleep),
    "uuid4": lambda: UUID(int=4711),
}


def arguments(task: Any) -> list[Any]:
    """Something for each parameter of a body that has no default, besides its run."""
    body = inspect.unwrap(task.run)
    hints = typing.get_type_hints(body)
    _, *own = inspect.signature(body).parameters.values()
    return [ARGUMENTS[hints[one.name]] for one in own if one.default is one.empty]


def same(end: dict[str, Any]) -> dict[str, Any]:
    """An end without what differs by nature."""
    messages = [message.to_dict() for message in end["conversation"] or ()]
    return {**end, "conversation": stable(messages)}


def stable(value: Any) -> Any:
    """JSON without volatile fields."""
    if isinstance(value, dict):
        return {key: stable(inner) for key, inner in value.items() if key not in _VOLATILE}
    return [stable(inner) for inner in value] if isinstance(value, list) else value


def interrupted(task: Any, is_wrong: bool) -> dict[str, Any]:
    """Interrupt an agent everywhere; what came of that."""
    try:
        return asdict(crash_everywhere(task, arguments(task), same=same))
    except AssertionError as error:
        if not is_wrong:
            raise
        return {"found": str(error)}


def main(order: dict[str, Any]) -> None:
    """Interrupt the agents that are named."""
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


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
