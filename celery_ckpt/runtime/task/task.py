"""``AgentTask``: a Celery task whose runs are durable. ``decorator.py`` makes one from a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Generic, Literal, ParamSpec, TypeVar

from celery.app.task import Task
from celery.canvas import _chain, chord
from celery.exceptions import Ignore, Reject
from celery.result import AsyncResult
from celery.utils import uuid
from pydantic import BaseModel

from celery_ckpt.errors import CheckpointTooLarge, ConfigurationError, NotJson, RunMisused, StepChanged
from celery_ckpt.names import checked_name
from celery_ckpt.run.tool_results import PendingCalls
from celery_ckpt.runtime.attempt.attempt import attempt_of
from celery_ckpt.runtime.attempt.execution import execute
from celery_ckpt.runtime.attempt.time_limit import soft_time_limit
from celery_ckpt.runtime.broker.envelope import AGENT_HEADER, RECORDED_HEADER
from celery_ckpt.runtime.current import current_request
from celery_ckpt.runtime.install import connect
from celery_ckpt.runtime.process.loop import run_coroutine
from celery_ckpt.runtime.settings import Settings, seconds
from celery_ckpt.runtime.task.admission import recorded_before_publishing
from celery_ckpt.runtime.task.hooks import wrap_hooks
from celery_ckpt.runtime.task.local import call_directly, run_locally
from celery_ckpt.runtime.task.options import (
    OPTIONS,
    check_body,
    check_options,
    parsed_strategy,
    sets_retry_delay,
)
from celery_ckpt.strategies import CheckpointStrategy

P = ParamSpec("P")
R = TypeVar("R")

#: Errors that another attempt would only repeat; and ``Reject``, which is not an error, and which
#: Celery itself would retry with ``autoretry_for = (Exception,)``.
PERMANENT = (CheckpointTooLarge, ConfigurationError, NotJson, RunMisused, StepChanged, Reject)


class AgentTask(Task, Generic[P, R]):
    """The base class of agent tasks: ``@app.task(base=AgentTask, bind=True)``, or ``@agent_task``.

    The class attributes can be given to the decorator, like those of any Celery task.
    """

    abstract = True
    # A message is acknowledged when its task has ended, and redelivered if its worker is killed.
    acks_late = True
    reject_on_worker_lost = True
    autoretry_for: ClassVar[tuple[type[BaseException], ...]] = (Exception,)
    dont_autoretry_for: ClassVar[tuple[type[BaseException], ...]] = PERMANENT
    retry_backoff: ClassVar[bool | int] = True
    retry_jitter: ClassVar[bool] = True

    #: When to take a checkpoint; ``None``: the setting ``ckpt_strategy``.
    strategy: CheckpointStrategy | str | None = None
    #: How many checkpoints are kept; ``None``: the setting ``ckpt_keep``.
    keep: int | None = None
    #: How old checkpoints may get; ``None``: the setting ``ckpt_max_age``.
    max_age: float | timedelta | None = None
    #: Hand off after this number of iterations; ``None``: the setting ``ckpt_iterations_per_task``.
    iterations_per_task: int | None = None
    #: What to do with unanswered tool calls of a resumed conversation: leave, answer or take_back.
    pending_calls: PendingCalls = "leave"
    #: Whether a step that differs from its record is called again, or fails the run.
    on_changed: Literal["call", "fail"] = "call"
    #: Whether the state STARTED is stored; ``None``: the setting ``task_track_started``. Celery itself
    #: would store it for a late delivery too, over the outcome of a run that has ended.
    tracks_start: bool | None = None
    track_started = False
    #: Distinguishes agent tasks from other tasks.
    is_agent = True
    #: Whether the body is a coroutine function.
    is_async = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_options({name: getattr(cls, name) for name in OPTIONS})
        cls.strategy = parsed_strategy(cls.strategy)
        cls.tracks_start = cls.__dict__.get("track_started", cls.tracks_start)
        cls.track_started = False
        if sets_retry_delay(cls.__dict__):
            cls.retry_backoff = False
        wrap_hooks(cls)
        body = cls.__dict__.get("run")
        function = body.__func__ if isinstance(body, staticmethod) else body
        if function is not None:
            check_body(inspect.unwrap(function))
        if function is not None and inspect.iscoroutinefunction(inspect.unwrap(function)):
            cls.is_async = True
            blocking = _blocking(function)
            cls.run = staticmethod(blocking) if isinstance(body, staticmethod) else blocking

    def _get_request(self) -> Any:
        """Return the request, also in an async body, whose thread is not that of its task."""
        # In this order for speed: Celery reads the request many times in each task.
        return self.request_stack.top or current_request(self) or super()._get_request()

    request = property(_get_request)

    def strategy_in(self, settings: Settings) -> CheckpointStrategy:
        """Return the strategy of the task, or that of the settings."""
        strategy = parsed_strategy(self.strategy)
        return settings.strategy if strategy is None else strategy

    @property
    def retention_limits(self) -> dict[str, Any]:
        """Return the retention limits of this task, for the record of a run."""
        return {"keep": self.keep, "max_age": seconds(self.max_age)}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Execute the body for a delivery; or, called directly, without a store."""
        if self.request.is_eager:
            eager: R = run_locally(self, lambda: self.run(*args, **kwargs))
            return eager
        # A delivery has an attempt only while its body runs: then it is the body that calls the task.
        if self.request.called_directly or attempt_of(self) is not None:
            result: R = call_directly(self, args, kwargs)
            return result
        value: R = execute(self, args, kwargs)
        return value

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult:
        """Send the task with these arguments, for an agent named by the task id."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *positional: Any,
        agent_id: str | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Send the task. ``agent_id`` names the agent whose history it continues; without it, the agent
        is named by the task id. All other options are Celery's.

        Raises:
            InvalidName: this is not a valid name for an agent.
            StoreUnavailable: the run could not be recorded, so it was not sent.
        """
        options["headers"] = headers = dict(options.get("headers") or {})
        headers[RECORDED_HEADER] = True
        if agent_id is not None:
            headers[AGENT_HEADER] = checked_name(agent_id)
        if self.app.conf.task_always_eager:
            return super().apply_async(args, kwargs, task_id, *positional, **options)
        task_id = checked_name(task_id or uuid(), "A run_id")
        with recorded_before_publishing(
            self, checked_name(headers.get(AGENT_HEADER) or task_id), task_id, options
        ):
            return super().apply_async(args, kwargs, task_id, *positional, **options)

    def retry(self, *args: Any, **options: Any) -> Any:
        """Celery's ``retry``. The lease is released and the retry counted before it is published."""
        attempt = attempt_of(self)
        error = options.get("exc")
        if attempt is not None and error is not None and attempt.should_hand_off(error):
            raise error  # it is handed off, which does not count as a retry
        if isinstance(error, PERMANENT):
            raise error  # never retried, also with a dont_autoretry_for of the user's own
        if attempt is not None:
            attempt.retried_for = error
        try:
            with soft_time_limit.disabled():
                return super().retry(*args, **options)
        except Reject as rejected:
            if attempt is None:
                raise
            if not attempt.is_released and isinstance(rejected.reason, Exception):
                raise rejected.reason from rejected  # no message can hold it, so it is the failure
            # The broker is unavailable. The run is on record, so the watchdog publishes it.
            raise Ignore("the retry could not be published yet") from rejected

    def replace(self, sig: Any) -> Any:
        """Celery's ``replace``: another task gets this one's task id, and the run ends here.

        Two agents need two histories. The new agent is named after the task id and the number of
        replacements, unless it has a name: the task id alone would find the run that has just ended.
        """
        if not self.request.is_eager:
            heir = _heir(sig)
            if not heir.options.get("agent_id"):
                times = (self.request.replaced_task_nesting or 0) + 1
                headers = heir.options.get("headers") or {}
                heir.options["headers"] = {AGENT_HEADER: f"{self.request.id}/{times}", **headers}
        return super().replace(sig)


def _blocking(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function that runs a coroutine function on the loop of this process."""

    @functools.wraps(body)
    def wait(*args: Any, **kwargs: Any) -> Any:
        result = body(*args, **kwargs)
        if not inspect.iscoroutine(result):
            return result
        value = run_coroutine(result)
        # Celery's ``pydantic=True`` wraps the body, and could not serialize the result of a coroutine.
        is_wrapped = not inspect.iscoroutinefunction(body)
        return value.model_dump(mode="json") if is_wrapped and isinstance(value, BaseModel) else value

    return wait


def _heir(signature: Any) -> Any:
    """Return the part of a signature whose result is the result of the whole."""
    if isinstance(signature, _chain) and signature.tasks:
        return _heir(signature.tasks[-1])
    if isinstance(signature, chord) and signature.body is not None:
        return _heir(signature.body)
    return signature


connect()
