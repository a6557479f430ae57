"""Bodies for the type checker. The comments are the errors that it must report. Nothing is executed."""

from __future__ import annotations

from typing import Any, assert_type

from anthropic.types import Message as AnthropicMessage
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from celery_ckpt import AgentRun, CheckpointEvent, Conversation, Message, Usage


class Page(BaseModel):
    title: str


def number(a: int, b: str = "") -> float:
    return a / 2


async def page(title: str) -> Page:
    return Page(title=title)


def chat(conversation: Conversation) -> dict[str, Any]:
    return {}


def items(conversation: Conversation) -> list[dict[str, Any]]:
    return []


def completion() -> ChatCompletion:
    raise NotImplementedError


def response() -> Response:
    raise NotImplementedError


async def async_response() -> Response:
    raise NotImplementedError


async def anthropic_message() -> AnthropicMessage:
    raise NotImplementedError


async def async_chat(conversation: Conversation) -> dict[str, Any]:
    return {}


TOOLS = {"number": number, "page": page, "items": items}


def body(run: AgentRun) -> None:
    assert_type(run.step("number", number, 1, b="x"), float)
    assert_type(run.step("page", number, 1, returns=Page), Page)
    assert_type(run.step("number", number, 1, key="n"), float)
    assert_type(run.step("number", number, 1, kind="tool", on_value=print, usage=Usage()), float)
    assert_type(run.step("page", number, 1, returns=Page, key="n"), Page)
    run.step("number", number, 1, kind="other")  # type: ignore[call-arg, arg-type]
    run.step("number", number, "1")  # type: ignore[call-overload]
    run.step("number", number)  # type: ignore[call-overload]
    reply = run.llm(chat, run.conversation)
    assert_type(reply, Message)
    for item in run.llm(items, run.conversation):
        assert item.tool_calls == []
    assert_type(run.tool(reply.tool_calls[0], number), float)
    found: list[Any] = run.tools(reply, {"number": number}, retry_on=OSError)
    assert found == run.tools(run.llm(items, run.conversation), [number], parallel=False)
    found += run.tools(reply, TOOLS)
    run.tools("reply", [number])  # type: ignore[call-overload]
    assert_type(run.llm(completion), Message)
    assert_type(run.llm(response), list[Message])
    for iteration in run.iterations(limit=3):
        assert_type(iteration, int)
    run.emit(CheckpointEvent.ITERATION)


async def async_body(run: AgentRun) -> None:
    assert_type(await run.step("page", page, "x"), Page)
    assert_type(await run.step("page", page, "x", key="p", usage=lambda page: None), Page)
    reply = await run.llm(async_chat, run.conversation)
    assert_type(await run.tool(reply.tool_calls[0], page), Page)
    assert_type(await run.tools(reply, {"page": page}), list[Any])
    assert_type(await run.tools(reply, [page], retry_on=(OSError, TimeoutError)), list[Any])
    found: list[Any] = await run.tools(reply, {"page": page, "number": number})
    found += await run.tools(reply, TOOLS)
    assert found == await run.tools(reply, [number])
    assert_type(await run.llm(async_response), list[Message])
    assert_type(await run.llm(anthropic_message), Message)
    async for iteration in run.iterations():
        assert_type(iteration, int)
    await run.checkpoint(note="x")
