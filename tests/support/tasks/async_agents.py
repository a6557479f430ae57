"""Agents whose bodies are coroutines."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from celery import shared_task
from pydantic import BaseModel

from celery_ckpt import AgentRun, AgentTask, EveryN, agent_task, current_run
from tests.support.ledger import here
from tests.support.wait import POLL


@agent_task
async def which_loop(run: AgentRun, seconds: float = 0.0) -> list[Any]:
    """Return the process, the loop, and whether ``current_run`` is still this run after a wait."""
    await asyncio.sleep(seconds)
    loop = asyncio.get_running_loop()
    return [os.getpid(), id(loop), current_run().run_id == run.run_id]


def _calls(n: int) -> dict[str, Any]:
    def call(number: int) -> dict[str, Any]:
        arguments = f'{{"number": {number}}}'
        function = {"name": "work", "arguments": arguments}
        return {"id": f"c{number}", "type": "function", "function": function}

    return {"role": "assistant", "content": None, "tool_calls": [call(n) for n in range(n)]}


async def _model(n: int) -> dict[str, Any]:
    return _calls(n)


@agent_task(strategy=EveryN(1), iterations_per_task=1)
async def parallel(run: AgentRun, n: int, how: str) -> list[Any]:
    """Run the tools of each of two replies concurrently; the first ones take longest."""

    async def work(number: int) -> int:
        here().call(run.run_id, f"work {run.iteration}.{number}")
        await asyncio.sleep(0.02 * (n - number))
        return 10 * number

    with here().body(run.run_id, attempt=run.attempt):
        async for _ in run.iterations(limit=2):
            reply = await run.llm(_model, n)
            if how == "gather":
                done = await asyncio.gather(*(run.tool(call, work) for call in reply.tool_calls))
            else:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(_awaited(run.tool(c, work))) for c in reply.tool_calls]
                done = [task.result() for task in tasks]
            run.state["sum"] = run.state.get("sum", 0) + sum(done)
        answers = [
            message.to_dict()["tool_call_id"]
            for message in run.conversation.messages
            if message.to_dict()["role"] == "tool"
        ]
        return [run.state["sum"], answers]


async def _call(run_id: str, name: str) -> None:
    """Make a call that can be held while the loop runs others."""
    here().note(run_id, "call", name=name)
    while here().is_held(name):
        await asyncio.sleep(POLL)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@agent_task(strategy=EveryN(1))
async def in_a_group(run: AgentRun) -> int:
    """Run all steps as tasks of a group. The worker shuts down during them."""

    async def work(number: int) -> int:
        await _call(run.run_id, f"work {number}")
        return number

    with here().body(run.run_id, attempt=run.attempt):
        total = 0
        async for number in run.iterations(limit=6):
            async with asyncio.TaskGroup() as group:
                one = group.create_task(_awaited(run.step("one", work, 2 * number)))
                two = group.create_task(_awaited(run.step("two", work, 2 * number + 1)))
            run.state["sum"] = run.state.get("sum", 0) + one.result() + two.result()
        total = run.state["sum"]
        return int(total)


@agent_task(strategy=EveryN(1), max_retries=1, retry_backoff=False, default_retry_delay=0)
async def slow_async(run: AgentRun, n: int) -> int:
    """Wait in a step until a time limit interrupts it. The ledger has its clean-up."""
    with here().body(run.run_id, attempt=run.attempt, retries=run.task.request.retries):
        async for number in run.iterations(limit=n):
            await run.step("sleep", _sleep, run.run_id, number)
        return run.attempt


async def _sleep(run_id: str, number: int) -> None:
    try:
        await _call(run_id, f"sleep {number}")
    except asyncio.CancelledError:
        await asyncio.sleep(0.5)  # as code that closes connections does
        here().note(run_id, "cleaned up")
        raise


class Given(BaseModel):
    number: int


@shared_task(base=AgentTask, bind=True, pydantic=True)
async def with_models(self: AgentTask[Any, Any], given: Given) -> Given:
    run = current_run()
    return Given(number=await run.step("add", _one_more, given.number))


async def _one_more(number: int) -> int:
    return number + 1


@agent_task
async def lenient(run: AgentRun, how: str) -> list[str]:
    """Ignore the exceptions of its calls, and return as soon as they are made."""

    async def work(name: str) -> str:
        await _call(run.run_id, name)
        return name

    with here().body(run.run_id, attempt=run.attempt, retries=run.task.request.retries):
        await run.step("first", work, "first")
        calls = [run.step(name, work, name) for name in ("second", "third")]
        done = await asyncio.gather(*calls, return_exceptions=True)
        if how == "trips":
            return [str(one).upper() for one in done if one[0]]
        return [one if isinstance(one, str) else "failed" for one in done]


@agent_task(max_retries=1, retry_backoff=False, default_retry_delay=0)
async def fails_beside(run: AgentRun) -> list[str]:
    """Make two calls, of which one fails at first while the other is in flight."""

    async def good() -> str:
        await _call(run.run_id, "good")
        return "good"

    async def bad() -> str:
        here().note(run.run_id, "bad")
        if run.task.request.retries == 0:
            raise ValueError("not yet")
        return "bad"

    with here().body(run.run_id, attempt=run.attempt):
        return list(await asyncio.gather(run.step("good", good), run.step("bad", bad)))


@shared_task(bind=True)
def relatives(self: Any) -> list[str | None]:
    """Return the ids of the parent and of the root of this task."""
    return [self.request.parent_id, self.request.root_id]


@agent_task
async def relatives_of_agent(run: AgentRun) -> list[str | None]:
    """Return the ids of the parent and of the root of this agent."""
    return [run.task.request.parent_id, run.task.request.root_id]


@agent_task
async def sends_others(run: AgentRun) -> list[str]:
    """Send a task and an agent."""
    return await run.step("send", lambda: [one.delay().id for one in (relatives, relatives_of_agent)])
