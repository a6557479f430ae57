"""Agents that fail, and slow agents."""

from __future__ import annotations

import time
from typing import Any

from celery_ckpt import AgentRun, agent_task
from tests.support.ledger import here


class Broken(Exception):
    pass


def _fail(run: AgentRun, times: int) -> None:
    here().call(run.run_id, "attempt", retries=run.task.request.retries, attempt=run.attempt)
    if run.attempt <= times:
        raise Broken(f"attempt {run.attempt}")


@agent_task(max_retries=2)
def by_default(run: AgentRun, times: int) -> int:
    """Is retried with the default backoff."""
    run.step("once", _once, run.run_id)
    _fail(run, times)
    return run.attempt


def _once(run_id: str) -> None:
    here().call(run_id, "once")


@agent_task(max_retries=2)
async def async_by_default(run: AgentRun, times: int) -> int:
    """Is retried with the default backoff, as a coroutine."""
    await run.step("once", _async_once, run.run_id)
    _fail(run, times)
    return run.attempt


async def _async_once(run_id: str) -> None:
    here().call(run_id, "once")


@agent_task(autoretry_for=())
def not_at_all(run: AgentRun, times: int) -> int:
    """Is never retried."""
    _fail(run, times)
    return run.attempt


@agent_task(max_retries=2, retry_backoff=False, default_retry_delay=60)
def much_later(run: AgentRun, times: int) -> int:
    """Is retried after a minute, when the test is over."""
    _fail(run, times)
    return run.attempt


@agent_task(max_retries=2, retry_backoff=False, default_retry_delay=0, iterations_per_task=1)
def at_once(run: AgentRun, times: int) -> int:
    """Is retried without delay, with hand-offs before and after."""
    for number in run.iterations(limit=3):
        run.step("count", _count, run.run_id, number)
        if number == 2:
            run.state["tried"] = run.attempt
            _fail(run, times)
    return run.attempt


def _count(run_id: str, number: int) -> None:
    here().call(run_id, f"iteration {number}")


@agent_task(max_retries=5)
def with_other_arguments(run: AgentRun, number: int) -> int:
    """Call ``retry`` with a larger number."""
    here().call(run.run_id, f"with {number}", retries=run.task.request.retries)
    if number < 3:
        raise run.task.retry(args=(number + 1,), countdown=0)
    return number


@agent_task(max_retries=5)
async def async_with_other_arguments(run: AgentRun, number: int) -> int:
    """Call ``retry`` with a larger number, as a coroutine."""
    here().call(run.run_id, f"with {number}", retries=run.task.request.retries)
    if number < 3:
        raise run.task.retry(args=(number + 1,), countdown=0)
    return number


@agent_task(max_retries=1, retry_backoff=False, default_retry_delay=0)
def slow_step(run: AgentRun, n: int, seconds: float = 0.0) -> int:
    """Be slow, or held, in a step, until a time limit interrupts it."""
    with here().body(run.run_id, attempt=run.attempt, retries=run.task.request.retries):
        for number in run.iterations(limit=n):
            run.step("sleep", _sleep, run.run_id, number, seconds)
        return run.attempt


def _sleep(run_id: str, number: int, seconds: float) -> None:
    here().call(run_id, f"sleep {number}")
    time.sleep(seconds)


@agent_task(strategy="never")
def stubborn(run: AgentRun, seconds: float = 0.0) -> str:
    """Work without a call of its run, so that no request to stop reaches it."""
    with here().body(run.run_id, attempt=run.attempt):
        here().call(run.run_id, "working")
        time.sleep(seconds)
        return "done"


def outcome(result: Any) -> str:
    """Return the current state of a result, not the one that the object has cached."""
    return str(result.app.AsyncResult(result.id).state)
