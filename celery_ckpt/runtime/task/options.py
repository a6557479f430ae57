"""The options of an agent task, checked where the task is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.run.tool_results import POLICIES
from celery_ckpt.runtime.settings import seconds
from celery_ckpt.strategies import CheckpointStrategy, Never

#: The options of ``AgentTask`` that are checked.
OPTIONS = ("strategy", "on_changed", "pending_calls", "iterations_per_task", "keep", "max_age")


def parsed_strategy(strategy: Any) -> CheckpointStrategy | None:
    """Return a strategy, which may be given as text; ``None`` stays ``None``.

    Raises:
        ConfigurationError: it is not a strategy.
    """
    if strategy is None or isinstance(strategy, CheckpointStrategy):
        return strategy
    if isinstance(strategy, str):
        return CheckpointStrategy.parse(strategy)
    raise ConfigurationError(
        reason=f"strategy must be a CheckpointStrategy or its text, not {strategy!r}."
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ``ConfigurationError`` if an option is wrong. Unknown options are left to Celery."""
    strategy = parsed_strategy(options.get("strategy"))
    if isinstance(strategy, Never) and options.get("iterations_per_task"):
        raise ConfigurationError(
            reason="iterations_per_task needs checkpoints to continue from, but the strategy is Never."
        )
    for name, (is_right, expected) in _RULES.items():
        if name in options and not is_right(options[name]):
            raise ConfigurationError(reason=f"{name} must be {expected}, not {options[name]!r}.")


def sets_retry_delay(options: Mapping[str, Any]) -> bool:
    """True if the options set a fixed retry delay: with ``retry_backoff`` Celery would ignore it."""
    has_pause = "default_retry_delay" in options or "countdown" in (options.get("retry_kwargs") or {})
    return has_pause and "retry_backoff" not in options


def check_body(body: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` for a generator: Celery would make it and never iterate over it."""
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        reason = f"The body of agent task {body.__qualname__} is a generator. Return a value instead."
        raise ConfigurationError(reason=reason)


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and value >= 1)


def _is_span(value: Any) -> bool:
    return value is None or (isinstance(seconds(value), int | float) and 0 < seconds(value) < inf)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "on_changed": (lambda value: value in ("call", "fail"), "'call' or 'fail'"),
    "pending_calls": (lambda value: value in POLICIES, f"one of {', '.join(POLICIES)}"),
    "iterations_per_task": (_is_count, "1 or more, or None"),
    "keep": (_is_count, "1 or more, or None"),
    "max_age": (_is_span, "over 0 seconds, a timedelta, or None"),
}
