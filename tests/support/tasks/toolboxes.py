"""Agents that execute the tool calls of the model with ``run.tools``."""

from __future__ import annotations

import asyncio
from typing import Any

from celery_ckpt import AgentRun, EveryN, agent_task, current_run
from tests.support.ledger import here
from tests.support.wait import POLL

MODULE = "tests.support.tasks.toolboxes"
_SOON: dict[str, Any] = {"max_retries": 20, "retry_backoff": False, "default_retry_delay": 0}


def asks(tool: str, n: int) -> dict[str, Any]:
    """Return a reply that asks for the same tool ``n`` times."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": tool, "arguments": f'{{"n": {i}}}'}}
        for i in range(n)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


async def _asks(tool: str, n: int) -> dict[str, Any]:
    return asks(tool, n)


def expected(iterations: int, n: int) -> list[list[str]]:
    """Return the results of the agents below."""
    return [[f"work {iteration}.{i}" for i in range(n)] for iteration in range(1, iterations + 1)]


def work(n: int) -> str:
    """Wait while the call is held. ``current_run`` works in the thread of the tool."""
    run = current_run()
    here().call(run.run_id, name := f"work {run.iteration}.{n}")
    return name


async def async_work(n: int) -> str:
    """Wait while the call is held, on a loop."""
    run = current_run()
    here().note(run.run_id, "call", name=(name := f"work {run.iteration}.{n}"))
    while here().is_held(name):
        await asyncio.sleep(POLL)
    return name


def flaky(n: int) -> str:
    """Fail once per call. Only the odd calls fail with an error that is retried."""
    run = current_run()
    here().call(run.run_id, name := f"flaky {n}")
    if len(here().calls(name, run.run_id)) == 1:
        raise ConnectionError("busy") if n % 2 else ValueError("wrong")
    return name


@agent_task(strategy=EveryN(1), **_SOON)
def with_threads(run: AgentRun, iterations: int, n: int) -> Any:
    with here().body(run.run_id, attempt=run.attempt, retries=run.task.request.retries):
        for _ in run.iterations(limit=iterations):
            found = run.tools(run.llm(asks, "work", n), [work])
            run.state["found"] = [*run.state.get("found", []), found]
        return run.state["found"]


@agent_task(strategy=EveryN(1), **_SOON)
async def with_tasks(run: AgentRun, iterations: int, n: int) -> Any:
    with here().body(run.run_id, attempt=run.attempt, retries=run.task.request.retries):
        async for _ in run.iterations(limit=iterations):
            found = await run.tools(await run.llm(_asks, "work", n), {"work": async_work})
            run.state["found"] = [*run.state.get("found", []), found]
        return run.state["found"]


@agent_task(**_SOON)
def with_retries(run: AgentRun, n: int) -> Any:
    return run.tools(run.llm(asks, "flaky", n), [flaky], retry_on=ConnectionError)


@agent_task(**_SOON)
async def with_retries_of_tasks(run: AgentRun, n: int) -> Any:
    return await run.tools(await run.llm(_asks, "flaky", n), [flaky], retry_on=ConnectionError)
