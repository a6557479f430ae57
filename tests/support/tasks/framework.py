"""An agent that a framework drives: it has messages, a loop and tools of its own, and knows no run.

``answer`` connects it to its run by its model and its tools alone, as an adapter does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from celery_ckpt import AfterLlmResponse, AfterToolCall, AgentRun, Message, Usage, agent_task
from tests.support.ledger import here
from tests.support.wait import POLL

MODULE = "tests.support.tasks.framework"
Ask = Callable[[list[dict[str, Any]], int], Awaitable[dict[str, Any]]]
Use = Callable[[str, int], Awaitable[str]]


def run_sync(ask: Ask, use: Use, turns: int) -> list[dict[str, Any]]:
    """Be the framework: run everything on a loop of its own, and return all messages."""

    async def main() -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        for turn in range(turns):
            history.append(await ask(history, turn))
            # The calls of a turn run side by side. Their results are one message.
            results = await asyncio.gather(*(use(f"{turn}.{n}", n) for n in range(3)))
            history.append({"role": "user", "content": " ".join(results)})
        return history

    return asyncio.run(main())


async def _call(run: AgentRun, name: str) -> str:
    """Make a call that can be held while the loop runs others."""
    here().note(run.run_id, "call", name=name)
    while here().is_held(name):
        await asyncio.sleep(POLL)
    return name


@agent_task(strategy=AfterLlmResponse() | AfterToolCall(), max_retries=3)
def answer(run: AgentRun, turns: int) -> list[Any]:
    async def ask(history: list[dict[str, Any]], turn: int) -> dict[str, Any]:
        async def model() -> dict[str, Any]:
            return {"role": "assistant", "content": await _call(run, f"model {turn}")}

        def follow(reply: dict[str, Any]) -> None:
            run.conversation.extend_to([*history, reply])
            run.state["turns"] = run.state.get("turns", 0) + 1

        usage = Usage.of("big", input_tokens=10**turn)
        options: dict[str, Any] = {"kind": "llm", "on_value": follow, "usage": usage}
        reply: dict[str, Any] = await run.aio.step("ask", model, key=f"ask {turn}", **options)
        return reply

    async def use(call_id: str, n: int) -> str:
        return await run.aio.step("tool", _call, run, f"tool {call_id}", key=call_id, kind="tool")

    with here().body(run.run_id, attempt=run.attempt):
        history = run_sync(ask, use, turns)
        run.conversation.extend_to([Message.of(message) for message in history])
        return [run.state["turns"], run.usage.input_tokens, run.conversation.digest]


@agent_task(strategy=AfterToolCall(), max_retries=0)
def by_turns(run: AgentRun, n: int) -> list[int]:
    """Hand itself off after each step, and where it is told that the worker shuts down."""
    found = []
    with here().body(run.run_id, attempt=run.attempt):
        for number in range(n):
            found.append(run.step("work", here_and_now, run.run_id, number))
            if run.stopping:
                here().note(run.run_id, "stopping")
            run.hand_off()
    return found


def here_and_now(run_id: str, number: int) -> int:
    here().call(run_id, f"work {number}")
    return number
