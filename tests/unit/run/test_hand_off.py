"""What a body knows about its attempt, and a hand-off at a place of its choice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from celery import Celery

from celery_ckpt import AgentRun, agent_task
from celery_ckpt.errors import RunMisused
from celery_ckpt.run.control_flow import HandOff
from celery_ckpt.testing import crash_everywhere
from tests.support.run_host import Attempts

app = Celery("hand-off", set_as_current=False)
app.conf.ckpt_store_url = "memory://"
#: How often each body has begun.
begun: list[int] = []


@pytest.fixture(autouse=True)
def nothing_begun() -> None:
    del begun[:]


def test_local_objects_are_never_stored_and_gone_in_the_next_attempt() -> None:
    seen: list[dict[str, Any]] = []

    def body(run: AgentRun) -> None:
        seen.append(dict(run.local))
        run.local["client"] = object()
        run.step("work", lambda: 1)
        run.checkpoint()

    attempts = Attempts(body)
    attempts.go()
    attempts.go()
    assert seen == [{}, {}]


@agent_task(app=app)
def asks(run: AgentRun) -> list[bool]:
    return [run.is_kept, run.stopping, run.is_in_step, run.step("inside", lambda: run.is_in_step)]


def test_a_run_that_is_called_directly_is_not_kept_and_does_not_stop() -> None:
    assert asks() == [False, False, False, True]


def test_a_run_with_a_store_is_kept() -> None:
    assert crash_everywhere(asks, hand_offs=False).result == [True, False, False, True]


def test_hand_off_inside_a_call_is_refused() -> None:
    def body(run: AgentRun) -> None:
        run.step("work", run.hand_off)

    with pytest.raises(RunMisused, match=r"run\.hand_off was called inside a call"):
        Attempts(body).go()


def test_a_hand_off_waits_for_the_calls_beside_it() -> None:
    async def slow() -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        return 1

    async def body(run: AgentRun) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.step("slow", slow))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            await run.hand_off()

    attempts = Attempts(body)
    with pytest.raises(BaseExceptionGroup) as stopped:
        attempts.go()
    assert isinstance(stopped.value.exceptions[0], HandOff)
    assert [step.value for step in attempts.store.steps("a", "run")] == [1]


@agent_task(app=app)
def by_steps(run: AgentRun) -> list[int]:
    begun.append(run.attempt)
    found = []
    for n in range(3):
        found.append(run.step("work", lambda n: n, n))
        run.hand_off()
    return found


@agent_task(app=app)
async def by_steps_async(run: AgentRun) -> list[int]:
    begun.append(run.attempt)
    found = []
    for n in range(3):
        found.append(await run.aio.step("work", lambda n: n, n))  # type: ignore[misc]
        await run.hand_off()
    return found


@agent_task(app=app)
def by_iterations(run: AgentRun) -> int:
    begun.append(run.attempt)
    for iteration in run.iterations(limit=3):
        run.state["last"] = iteration
        run.hand_off()
    return run.state["last"]


@agent_task(app=app)
def by_state(run: AgentRun) -> int:
    begun.append(run.attempt)
    while run.state.setdefault("done", 0) < 3:
        run.state["done"] += 1
        run.checkpoint()
        run.hand_off()
    return run.state["done"]


@agent_task(app=app)
def at_once(run: AgentRun) -> int:
    begun.append(run.attempt)
    run.checkpoint()
    run.hand_off()
    return 7


HANDED_OFF = {
    by_steps: ([0, 1, 2], 4),
    by_steps_async: ([0, 1, 2], 4),
    by_iterations: (3, 4),
    by_state: (3, 4),
    at_once: (7, 2),
}


@pytest.mark.parametrize(("task", "end"), HANDED_OFF.items(), ids=lambda it: getattr(it, "name", ""))
def test_a_run_continues_after_the_place_where_it_was_handed_off(task: Any, end: Any) -> None:
    result, attempts = end
    # The uninterrupted run is the first of all.
    report = crash_everywhere(task)
    assert report.result == result
    first = next((n for n, one in enumerate(begun[1:], 1) if one == 1), len(begun))
    assert begun[:first] == [*range(1, attempts + 1)]


@pytest.mark.parametrize("task", [by_steps, by_iterations, by_state, at_once], ids=lambda it: it.name)
def test_a_direct_call_is_not_handed_off(task: Any) -> None:
    assert task() == HANDED_OFF[task][0]
    assert len(begun) == 1


stopped: list[int] = []


@agent_task(app=app)
def polite(run: AgentRun) -> int:
    total = 0
    for n in range(4):
        if run.stopping:
            stopped.append(n)
            run.hand_off()
        total += run.step("work", lambda n: n, n)
    return total


def test_crash_everywhere_stops_a_body_where_it_asks() -> None:
    report = crash_everywhere(polite)
    assert report.result == 6
    assert {0, 1, 2, 3} <= set(stopped)
    assert report.hand_offs == 8, "four times where it asks, and four times where it calls"
