"""``@agent_task``: one decorator makes a function a durable agent."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from celery import Celery, shared_task

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.current import current_run
from celery_ckpt.runtime.process.loop import run_coroutine
from celery_ckpt.runtime.task.options import check_body, check_options
from celery_ckpt.runtime.task.task import AgentTask

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """The type of ``agent_task(...)`` with options."""

    @overload
    def __call__(self, body: Callable[Concatenate[AgentRun, P], Awaitable[R]]) -> AgentTask[P, R]: ...
    @overload
    def __call__(self, body: Callable[Concatenate[AgentRun, P], R]) -> AgentTask[P, R]: ...


@overload
def agent_task(body: Callable[Concatenate[AgentRun, P], Awaitable[R]], /) -> AgentTask[P, R]: ...
@overload
def agent_task(body: Callable[Concatenate[AgentRun, P], R], /) -> AgentTask[P, R]: ...
@overload
def agent_task(*, app: Celery | None = None, **options: Any) -> Decorator: ...
def agent_task(
    body: Callable[..., Any] | None = None, /, *, app: Celery | None = None, **options: Any
) -> Any:
    """Make a function an agent task. The function takes its ``AgentRun`` and then its own arguments.

    Options are those of ``AgentTask`` (``strategy``, ``keep``, ``iterations_per_task``, ...) and all
    of Celery's. Without ``app`` it is a shared task, which autodiscovery finds.
    """
    if body is None:
        return lambda function: _task(function, app, options)
    return _task(body, app, options)


def _task(body: Callable[..., Any], app: Celery | None, options: dict[str, Any]) -> Any:
    if not callable(body):
        raise ConfigurationError(reason=f"@agent_task expects a function, not {body!r}.")
    # Here, not when the app is finalized: a shared task with an error would break every app.
    check_options(options)
    check_body(body)
    options = {"base": AgentTask, **options, "bind": True}
    if not issubclass(options["base"], AgentTask):
        raise ConfigurationError(
            reason=f"base must be AgentTask or a subclass of it, not {options['base']!r}."
        )
    # Set from the body: the base class may have been made for another one.
    options["is_async"] = inspect.iscoroutinefunction(body)
    make = shared_task if app is None else app.task
    return make(**options)(_taking_the_run(body))


def _taking_the_run(body: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the run as the first argument, where Celery passes the task."""
    is_async = inspect.iscoroutinefunction(body)

    @functools.wraps(body)
    def run_in_place_of_task(_task: Any, *args: Any, **kwargs: Any) -> Any:
        result = body(current_run(), *args, **kwargs)
        return run_coroutine(result) if is_async else result

    signature = inspect.signature(body)
    if not signature.parameters:
        raise ConfigurationError(
            reason=f"The body of agent task {body.__qualname__} must take an AgentRun as its first "
            "argument."
        )
    # Celery uses it to check the arguments of calls.
    run_in_place_of_task.__signature__ = signature  # type: ignore[attr-defined]
    return run_in_place_of_task
