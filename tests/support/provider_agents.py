"""Agents that do everything a body may do, in the shape of each provider, sync and async.

Each call leaves a stamp in its result. A call whose stamp was recorded must not be repeated.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel

from celery_ckpt import AgentRun, Conversation, Message, ToolCall
from celery_ckpt.records import Step


class Plan(BaseModel):
    topic: str
    stamp: str


class World:
    """The functions that agents call. It knows which results were recorded."""

    def __init__(self, shape: str) -> None:
        self.shape = shape
        self.calls: list[str] = []
        self.recorded: set[str] = set()

    def note(self, step: Step) -> None:
        self.recorded.update(re.findall(r"<[^>]*>", json.dumps(step.value)))

    def stamp(self, what: str) -> str:
        stamp = f"<{what}>"
        assert stamp not in self.recorded, f"{stamp} was recorded and is repeated"
        self.calls.append(stamp)
        return stamp

    def model(self, conversation: Conversation, iteration: int) -> Any:
        """Return a reply. Two of three ask for tools, with ids that are the same in each reply."""
        text = self.stamp(f"model {iteration} {conversation.digest[:12]}")
        calls = (
            []
            if iteration % 3 == 0
            else [(f"call_{n}", f'{{"n":{n},"iteration":{iteration}}}') for n in range(3)]
        )
        return SHAPES[self.shape](text, calls)

    def tool(self, n: int, iteration: int) -> Any:
        stamp = self.stamp(f"tool {iteration} {n}")
        return {"found": stamp} if n % 2 else stamp

    def plan(self, topic: str) -> Plan:
        return Plan(topic=topic, stamp=self.stamp(f"plan {topic}"))

    def look(self, iteration: int, which: str) -> list[str]:
        """Return another result for each of several equal calls."""
        before = sum(stamp.startswith(f"<look {iteration} {which}") for stamp in self.recorded)
        return [self.stamp(f"look {iteration} {which} {before}")]


def _chat(text: str, calls: list[tuple[str, str]]) -> Any:
    asked = [
        {"id": i, "type": "function", "function": {"name": "tool", "arguments": a}} for i, a in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": asked} if asked else {})}


def _responses(text: str, calls: list[tuple[str, str]]) -> Any:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    asked: list[dict[str, Any]] = []
    for i, a in calls:
        asked.append({"type": "reasoning", "id": f"r{i}", "summary": []})
        asked.append({"type": "function_call", "call_id": i, "name": "tool", "arguments": a})
    return [said, *asked]


def _anthropic(text: str, calls: list[tuple[str, str]]) -> Any:
    uses = [{"type": "tool_use", "id": i, "name": "tool", "input": json.loads(a)} for i, a in calls]
    return {"role": "assistant", "content": [{"type": "text", "text": text}, *uses]}


SHAPES: dict[str, Callable[..., Any]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
}


def calls_of(reply: Message | list[Message]) -> list[ToolCall]:
    messages = reply if isinstance(reply, list) else [reply]
    return [call for message in messages for call in message.tool_calls]


def prepare(run: AgentRun, question: str) -> None:
    if not run.resumed:
        run.conversation.append(Message.user(question))
        run.state["iterations"] = []


def compact(run: AgentRun) -> None:
    first, *rest = run.conversation.messages
    run.conversation.replace([first, Message.user(f"summary of {len(rest)}"), *rest[-1:]])


def sync_agent(world: World, limit: int | None, stop: int | None) -> Callable[[AgentRun], Any]:
    def body(run: AgentRun) -> Any:
        prepare(run, "why?")
        plan = run.step("plan", world.plan, "sky")
        opening = run.llm(world.model, run.conversation, 100)
        for call in calls_of(opening):
            run.tool(call, world.tool)
        for iteration in run.iterations(limit=limit):
            run.state["iterations"] = [*run.state["iterations"], iteration]
            reply = run.llm(world.model, run.conversation, iteration)
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda call: run.tool(call, world.tool), reversed(calls_of(reply))))
            if iteration % 2 == 0:
                run.state["seen"] = run.step("look", world.look, iteration, "x")
                run.step("look", world.look, iteration, "x")
                compact(run)
            run.metadata["last"] = str(iteration)
            if iteration == stop:
                break
        closing = run.llm(world.model, run.conversation, 300)
        run.state["closed"] = run.iteration
        return [plan.topic, plan.stamp, len(calls_of(closing)), run.iteration, run.idempotency_key("k")]

    return body


def async_agent(world: World, limit: int | None, stop: int | None) -> Callable[[AgentRun], Any]:
    async def model(conversation: Conversation, iteration: int) -> Any:
        await asyncio.sleep(0)
        return world.model(conversation, iteration)

    async def tool(n: int, iteration: int) -> Any:
        for _ in range(3 - n):
            await asyncio.sleep(0)
        return world.tool(n, iteration)

    async def body(run: AgentRun) -> Any:
        prepare(run, "why?")
        plan = await run.step("plan", world.plan, "sky")  # type: ignore[misc]
        opening = await run.llm(model, run.conversation, 100)
        for call in calls_of(opening):
            await run.tool(call, tool)
        async for iteration in run.iterations(limit=limit):
            run.state["iterations"] = [*run.state["iterations"], iteration]
            reply = await run.llm(model, run.conversation, iteration)
            async with asyncio.TaskGroup() as group:
                for call in calls_of(reply):
                    group.create_task(run.tool(call, tool))  # type: ignore[arg-type]
            if iteration % 2 == 0:
                run.state["seen"] = await run.step("look", world.look, iteration, "x")  # type: ignore[misc]
                await run.step("look", world.look, iteration, "x")  # type: ignore[misc]
                compact(run)
            run.metadata["last"] = str(iteration)
            if iteration == stop:
                break
        closing = await run.llm(model, run.conversation, 300)
        run.state["closed"] = run.iteration
        return [plan.topic, plan.stamp, len(calls_of(closing)), run.iteration, run.idempotency_key("k")]

    return body


AGENTS = {"sync": sync_agent, "async": async_agent}
