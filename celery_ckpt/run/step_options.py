"""What a caller of ``run.step`` says about a call besides its function and its arguments.

The keywords of ``run.step`` belong to ``run.step``. A function may have parameters of the same names.
It gets them by position, or bound with ``functools.partial``; a keyword that could be meant for both
is refused instead of guessed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_ckpt.errors import RunMisused
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.json_values import kind_of
from celery_ckpt.records import CallKind
from celery_ckpt.usage import Usage

_EVENTS: dict[str, CheckpointEvent | None] = {
    "llm": CheckpointEvent.LLM_RESPONSE,
    "tool": CheckpointEvent.TOOL_CALL_COMPLETE,
    "step": None,
}
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class StepOptions:
    """The keywords of ``run.step``. ``None``: not given."""

    returns: Any = None
    key: str | None = None
    kind: CallKind | None = None
    on_value: Callable[[Any], object] | None = None
    usage: Usage | Callable[[Any], Usage | None] | None = None

    @property
    def event(self) -> CheckpointEvent | None:
        """The event that a call of this kind emits."""
        return _EVENTS[self.kind or "step"]

    def used(self, value: Any) -> Usage | None:
        """Return what the call with this value has used, or ``None``."""
        used = self.usage(value) if callable(self.usage) else self.usage
        if used is not None and not isinstance(used, Usage):
            raise TypeError(f"usage= returned {kind_of(used)} instead of a Usage")
        return (used.attributed() or None) if used is not None else None

    def refuse_misuse(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Raise ``RunMisused`` for keywords that cannot be right, before anything is called."""
        given = [name for name, value in vars(self).items() if value is not None]
        if not given:
            return
        if self.key is not None and (not isinstance(self.key, str) or not self.key):
            raise _misused(f"key= must be text that is not empty, got {self.key!r}.")
        if self.kind not in (None, *_EVENTS):
            raise _misused(f"kind= must be 'llm', 'tool' or 'step', got {self.kind!r}.")
        if self.on_value is not None and not _is_plain_function(self.on_value):
            raise _misused("on_value= must be a plain function: nothing may happen while it runs.")
        if self.usage is not None and not (isinstance(self.usage, Usage) or callable(self.usage)):
            raise _misused(f"usage= must be a Usage or a function, got {kind_of(self.usage)}.")
        for name in sorted(set(given) & _free_parameters(fn, args)):
            raise _misused(
                f"{name}= belongs to run.step, but the function has a parameter {name!r}, too. "
                f"Pass that one by position, or bind it: functools.partial(fn, {name}=...)."
            )


def _is_plain_function(fn: Any) -> bool:
    return callable(fn) and not inspect.iscoroutinefunction(fn)


def _misused(reason: str) -> RunMisused:
    return RunMisused(reason=f"run.step: {reason}")


def _free_parameters(fn: Callable[..., Any], args: tuple[Any, ...]) -> set[str]:
    """Return the parameters of a function that a keyword could be for."""
    bound = set(fn.keywords) if isinstance(fn, partial) else set()
    try:
        signature = inspect.signature(fn)
        bound |= signature.bind_partial(*args).arguments.keys()
    except (TypeError, ValueError):
        return set()  # a builtin without a signature, or a call that fails by itself
    named = {name for name, own in signature.parameters.items() if own.kind in _BY_KEYWORD}
    return named - bound


def arguments_of(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return all arguments of a call, with those that ``functools.partial`` has bound."""
    while isinstance(fn, partial):
        args, kwargs = (*fn.args, *args), {**fn.keywords, **kwargs}
        fn = fn.func
    return args, kwargs
