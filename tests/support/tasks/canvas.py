"""Agents in the canvas of Celery, and the plain tasks that they are combined with."""

from __future__ import annotations

import os
import uuid
from ast import literal_eval
from datetime import UTC, date, datetime
from typing import Any

from celery import Task, shared_task
from celery.exceptions import Ignore, Reject
from kombu.serialization import register
from pydantic import BaseModel

from celery_ckpt import AgentRun, AgentTask, agent_task, current_run
from tests.support.ledger import here

# Can hold sets, which JSON cannot. A worker that is run as root accepts it, unlike pickle.
register(
    "literals", repr, lambda data: literal_eval(bytes(data).decode()), "application/x-literals", "utf-8"
)


@agent_task(iterations_per_task=1)
def climb(run: AgentRun, start: int, floors: int = 3) -> int:
    """Climb floor by floor, with a hand-off on each."""
    with here().body(run.run_id, attempt=run.attempt, retries=run.task.request.retries):
        for floor in run.iterations(limit=floors):
            here().call(run.run_id, f"floor {floor}")
            run.state["at"] = run.step("climb", _one_up, run.state.get("at", start))
        return int(run.state["at"])


def _one_up(at: int) -> int:
    return at + 1


@agent_task
async def aclimb(run: AgentRun, start: int, floors: int = 3) -> int:
    """Climb as a coroutine, without hand-offs."""
    at = start
    async for _ in run.iterations(limit=floors):
        at = await run.step("climb", _later, at)
    return at


async def _later(at: int) -> int:
    return at + 1


@agent_task(iterations_per_task=1, max_retries=1, retry_backoff=False, default_retry_delay=0)
def fall(run: AgentRun, start: int = 0) -> int:
    """Climb one floor and fail on the second, in every attempt."""
    for _ in run.iterations(limit=2):
        here().call(run.run_id, "attempt", retries=run.task.request.retries)
        if run.iteration == 2:
            raise RuntimeError("fell")
    return start


@agent_task
def largest(run: AgentRun, numbers: set[int]) -> int:
    """Take a set, which JSON cannot hold."""
    return max(numbers)


@agent_task
def gather(run: AgentRun, parts: list[int]) -> int:
    """Sum the parts, as the body of a chord."""
    here().call(run.run_id, "gather")
    return int(run.step("sum", sum, parts))


@shared_task(bind=True)
def double(self: Task[Any, Any], number: int) -> int:
    here().call(self.request.root_id, "double", number=number)
    return 2 * number


@shared_task
def collect(numbers: list[int]) -> list[int]:
    return sorted(numbers)


@shared_task
def note(value: Any, run_id: str) -> None:
    here().call(run_id, "linked", value=value)


@shared_task
def note_failure(request: Any, error: Any, traceback: Any) -> None:
    here().call(request.id, "errback", error=str(error))


class Question(BaseModel):
    text: str
    asked: date


class Answer(BaseModel):
    text: str
    length: int


@agent_task(pydantic=True)
def ask(run: AgentRun, question: Question) -> Answer:
    text = run.step("shout", str.upper, question.text)
    return Answer(text=text, length=question.asked.year)


@agent_task(pydantic=True, iterations_per_task=1)
def ask_often(run: AgentRun, question: Question, times: int) -> Answer:
    """Hand off after each iteration, and call ``retry`` once."""
    for number in run.iterations(limit=times):
        info = run.task.request.delivery_info
        seen = [type(question).__name__, info["routing_key"], info["priority"]]
        here().call(run.run_id, f"time {number}", seen=seen)
        if number == 2 and not run.task.request.retries:
            raise run.task.retry(countdown=0)
    return Answer(text=question.text, length=times)


@agent_task(pydantic=True)
async def ask_async(run: AgentRun, question: Question) -> Answer:
    text = await run.step("shout", _shouted, question.text)
    return Answer(text=text, length=question.asked.year)


async def _shouted(text: str) -> str:
    return text.upper()


@shared_task(base=AgentTask, bind=True, iterations_per_task=1)
def bound(self: AgentTask[Any, Any], n: int) -> list[Any]:
    run = current_run()
    for _ in run.iterations(limit=n):
        run.state["sum"] = run.step("add", _sum, run.state.get("sum", 0), run.iteration)
    return [run.state["sum"], self.request.id == run.run_id, run.task is not None]


@shared_task(base=AgentTask, bind=True)
async def bound_async(self: AgentTask[Any, Any], n: int) -> list[Any]:
    run, total = current_run(), 0
    async for _ in run.iterations(limit=n):
        total = await run.step("add", _async_sum, total, run.iteration)
    return [total, self.request.id == run.run_id, run.task is not None]


@shared_task(base=AgentTask)
def unbound(n: int) -> int:
    return current_run().step("add", _sum, n, 1)


def _sum(a: int, b: int) -> int:
    return a + b


async def _async_sum(a: int, b: int) -> int:
    return a + b


@agent_task
def values(run: AgentRun, kind: str) -> Any:
    """Return a value that plain JSON does not have."""
    return {
        "date": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "uuid": uuid.UUID(int=7),
        "tuple": (1, (2, 3)),
        "none": None,
    }[kind]


@agent_task(ignore_result=True, iterations_per_task=1)
def silent(run: AgentRun) -> str:
    for floor in run.iterations(limit=2):
        here().call(run.run_id, f"floor {floor}")
    return "ignored"


@agent_task
def facts(run: AgentRun) -> dict[str, Any]:
    """Return what a body can see of its message."""
    request = run.task.request
    return {
        "agent": run.agent_id,
        "run": run.run_id,
        "queue": request.delivery_info["routing_key"],
        "priority": request.delivery_info["priority"],
        "pid": os.getpid(),
    }


@agent_task
async def async_facts(run: AgentRun) -> dict[str, Any]:
    """Return what an async body can see of its message."""
    request = run.task.request
    run.task.update_state(state="THINKING")
    return {"id": request.id, "run": run.run_id, "retries": request.retries}


@agent_task(iterations_per_task=1)
def leave(run: AgentRun, how: str) -> None:
    """Raise ``Ignore`` or ``Reject`` in the second iteration."""
    for floor in run.iterations():
        here().call(run.run_id, f"floor {floor}")
        if floor == 2:
            raise {"ignore": Ignore(), "reject": Reject("no", requeue=False)}[how]


@agent_task(iterations_per_task=1)
def replaced(run: AgentRun, by: str, number: int) -> None:
    """Replace itself with another task in the second iteration."""
    for floor in run.iterations():
        here().call(run.run_id, f"before {floor}")
        if floor == 2:
            raise run.task.replace(_replacement(by, number))


def _replacement(by: str, number: int) -> Any:
    return {
        "double": double.s(number),
        "climb": climb.s(number),
        "chain": same.s(number) | climb.s(),
        "replaced": replaced.s("climb", number),
    }[by]


@shared_task
def same(number: int) -> int:
    return number
