"""The tools that a model may call by name, and what the model reads when a call goes wrong.

    unknown tool        Error: unknown tool 'serach'. Available tools: search, weather.
    bad arguments       Error: invalid arguments for 'weather': missing a required argument: 'city'
    an exception        Error: ValueError: no such city

A mistake of the model or of a service becomes a result, so that the model can correct itself.
Exceptions of the task queue, exceptions that the body wants to retry, and mistakes in the program are
raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from pydantic import ValidationError

from celery_ckpt.errors import RunMisused
from celery_ckpt.json_values import kind_of
from celery_ckpt.messages import Message, ToolCall
from celery_ckpt.run.step_result import declared
from celery_ckpt.run.steps import name_of

Tool: TypeAlias = Callable[..., Any]
Errors: TypeAlias = tuple[type[BaseException], ...]

#: How much of an error's text the model reads.
_LONGEST_TEXT = 2_000
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Failure:
    """A call that failed; the text is its result."""

    text: str


class Toolbox:
    """Tools by name. Exceptions of the types ``raised`` never become results."""

    def __init__(self, tools: Mapping[str, Tool] | Iterable[Tool], raised: Errors) -> None:
        self._tools, self._raised = _by_name(tools), raised

    def returns(self, call: ToolCall) -> Any:
        """Return the type that the call's tool declares, if it contains pydantic models."""
        tool = self._tools.get(call.name)
        return None if tool is None else declared(tool)

    def prepared(self, call: ToolCall) -> Callable[[], Any] | Failure:
        """Return the call, ready to be made, or its failure."""
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return _failure(f"unknown tool {_short(call.name)}. Available tools: {known}.")
        try:
            arguments = call.arguments
        except ValueError as error:
            reason = f"not JSON: {error.__cause__}" if error.__cause__ else "not a JSON object"
            return _invalid(call, reason)
        try:
            inspect.signature(tool).bind(**arguments)
        except TypeError as error:
            return _invalid(call, str(error))
        except ValueError:
            pass  # a builtin without a signature
        return partial(tool, **arguments)

    def failure(self, call: ToolCall, error: Exception) -> Failure | None:
        """Return what the model reads about an exception of a tool; ``None`` if it must be raised."""
        if _is_any(error, self._raised):
            return None
        if isinstance(error, ValidationError) and _is_of_arguments(error, self._tools[call.name]):
            return _invalid(call, _misfits(error))
        text = _text_of(error)
        return _failure(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def calls_of(reply: Any) -> list[ToolCall]:
    """Return the tool calls of a reply of ``run.llm``.

    Raises:
        RunMisused: it is something else.
    """
    messages = reply if isinstance(reply, list | tuple) else [reply]
    for message in messages:
        if not isinstance(message, Message):
            raise RunMisused(
                reason=f"run.tools expects a reply, got {kind_of(message)}. Pass what run.llm "
                "returned: a Message, or a list of messages."
            )
    return [call for message in messages for call in message.tool_calls]


def _by_name(tools: Mapping[str, Tool] | Iterable[Tool]) -> dict[str, Tool]:
    pairs = list(tools.items()) if isinstance(tools, Mapping) else [(name_of(t), t) for t in tools]
    for name, tool in pairs:
        if not callable(tool):
            raise RunMisused(
                reason=f"run.tools expects functions as tools, got {kind_of(tool)}. Pass functions, "
                "or a mapping of names to functions."
            )
        if [other for other, _ in pairs].count(name) > 1:
            raise RunMisused(
                reason=f"run.tools got two tools named {name!r}. Pass a mapping to name them."
            )
    return dict(pairs)


def _is_any(error: BaseException, types: Errors) -> bool:
    if isinstance(error, types):
        return True
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(_is_any(inner, types) for inner in inside)


def _is_of_arguments(error: ValidationError, tool: Tool) -> bool:
    """True if ``pydantic.validate_call`` refused the arguments of the tool itself."""
    return hasattr(tool, "raw_function") and error.title.rpartition(".")[2] == name_of(tool)


def _misfits(error: ValidationError) -> str:
    # Without the values: the model knows what it sent, and they may be long.
    misfits = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in misfits)


def _invalid(call: ToolCall, reason: str) -> Failure:
    return _failure(f"invalid arguments for {_short(call.name)}: {reason}")


def _failure(reason: str) -> Failure:
    text = f"Error: {reason}".encode(errors="replace").decode()
    return Failure(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}...")


def _short(name: str) -> str:
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return ""
