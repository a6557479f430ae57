"""Agents that are interrupted outside their body, at a point that the test names.

A point is before or after a call of the store, or a line that the tracer of Celery logs. An
interruption happens once per run, in the process that executes it. A prefork process then gets the
signal of a soft time limit. At ``TRACER_FAILS`` the tracer of Celery raises an error, in every pool.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

from celery import current_task, shared_task
from celery.signals import worker_init, worker_process_init

from celery_ckpt import AgentRun, RedisCheckpointStore, agent_task
from tests.support.ledger import here

MODULE = "tests.support.tasks.interruptions"
_STORE = ("start_run", "load_latest", "release", "save", "update_run")
#: Points at which the body of an agent is not running.
INTERRUPTION_POINTS = (
    *(f"{when} {name}" for name in _STORE for when in ("before", "after")),
    "ignored",
    "succeeded",
)
TRACER_FAILS = "tracer fails"
_LOGGED = {"ignored": "ignored", TRACER_FAILS: "ignored", "succeeded": "succeeded in"}


class Broken(Exception):
    pass


@agent_task(iterations_per_task=1, max_retries=0)
def count(run: AgentRun, point: str) -> int:
    """Hand off once, and return in the second attempt."""
    for _ in run.iterations(limit=2):
        run.state["sum"] = run.state.get("sum", 0) + run.iteration
    return int(run.state["sum"])


@agent_task(iterations_per_task=1, max_retries=0)
async def async_count(run: AgentRun, point: str) -> int:
    """Do as ``count``, as a coroutine."""
    async for _ in run.iterations(limit=2):
        run.state["sum"] = run.state.get("sum", 0) + run.iteration
    return int(run.state["sum"])


@agent_task(iterations_per_task=1, max_retries=0)
def grow(run: AgentRun) -> None:
    """Have more to save at the hand-off than the store accepts."""
    for _ in run.iterations(limit=2):
        run.state["text"] = "x" * 100_000


@agent_task(max_retries=0)
def held(run: AgentRun) -> str:
    """Wait while the call is held."""
    here().call(run.run_id, "held")
    return "done"


@agent_task(max_retries=0)
def fail(run: AgentRun, point: str) -> None:
    raise Broken("by itself")


@agent_task(max_retries=1, retry_backoff=False, default_retry_delay=0)
def fail_once(run: AgentRun, point: str) -> int:
    """Fail once: the retry releases the lease."""
    if not run.task.request.retries:
        raise Broken("once")
    return int(run.task.request.retries)


@shared_task
def plain() -> None:
    """Wait while the call is held. This task is not an agent."""
    here().call("", "plain")


def _interrupt(point: str) -> None:
    """Interrupt the current task if its arguments name this point and it was not interrupted yet."""
    request = getattr(current_task, "request", None)
    if request is None or point not in (request.args or ()):
        return
    if not here().notes(request.id, "interrupted"):
        here().note(request.id, "interrupted", point=point)
        if point == TRACER_FAILS:
            raise Broken(point)
        os.kill(os.getpid(), signal.SIGUSR1)


def _interrupted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        _interrupt(f"before {name}")
        result = method(*args, **kwargs)
        _interrupt(f"after {name}")
        return result

    return call


class _Listener(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        for point, words in _LOGGED.items():
            if words in record.getMessage():
                _interrupt(point)
        return True


# Only in a worker: the tests import this module too.
@worker_process_init.connect(weak=False)
def _interrupt_store(**_: Any) -> None:
    for name in _STORE:
        setattr(RedisCheckpointStore, name, _interrupted(name, getattr(RedisCheckpointStore, name)))


@worker_init.connect(weak=False)
def _interrupt_tracer(**_: Any) -> None:
    logging.getLogger("celery.app.trace").addFilter(_Listener())
