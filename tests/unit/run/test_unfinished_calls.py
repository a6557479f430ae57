"""What happens to tool calls that were never finished."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ckpt import Conversation, Message
from celery_ckpt.run.tool_results import INTERRUPTED, POLICIES, repaired


def chat_call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}


CHAT = [
    Message.user("go"),
    Message.assistant("two", tool_calls=[chat_call("a"), chat_call("b")]),
    Message.tool("1", "a"),
]
ANTHROPIC = [
    Message.user("go"),
    Message.assistant([{"type": "tool_use", "id": "a", "name": "f", "input": {}}]),
]
RESPONSES = [
    Message.of({"type": "message", "role": "user", "content": "go"}),
    Message.of({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}),
]
PYDANTIC_AI = [
    Message.of({"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "go"}]}),
    Message.of(
        {
            "kind": "response",
            "parts": [
                {"part_kind": "text", "content": "so"},
                {"part_kind": "tool-call", "tool_name": "f", "args": {}, "tool_call_id": "a"},
            ],
        }
    ),
]
SHAPES = pytest.mark.parametrize(
    "messages",
    [CHAT, ANTHROPIC, RESPONSES, PYDANTIC_AI],
    ids=["chat", "anthropic", "responses", "pydantic-ai"],
)


@SHAPES
def test_a_conversation_with_open_calls_can_be_left_unchanged(messages: list[Message]) -> None:
    conversation = Conversation(messages=messages)

    assert repaired(conversation, "leave") is conversation
    assert conversation.pending_tool_calls()


def test_leaving_a_conversation_unchanged_reads_none_of_its_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversation, read = Conversation(messages=CHAT), []
    monkeypatch.setattr(Message, "json_object", property(read.append))
    assert repaired(conversation, "leave") is conversation
    assert read == []


@SHAPES
@pytest.mark.parametrize("policy", ["answer", "take_back"])
def test_a_repaired_conversation_has_no_open_calls(messages: list[Message], policy: Any) -> None:
    conversation = Conversation(messages=messages)

    whole = repaired(conversation, policy)

    assert whole.pending_tool_calls() == []
    assert conversation.messages == messages


@SHAPES
def test_answering_gives_each_open_call_an_error_as_its_result(messages: list[Message]) -> None:
    whole = repaired(Conversation(messages=messages), "answer")

    assert whole.messages[: len(messages)] == messages
    [answer] = whole.messages[len(messages) :]
    assert INTERRUPTED in answer.to_json().decode()
    assert answer.answers == (["b"] if messages is CHAT else ["a"])


def test_open_calls_of_pydantic_ai_are_answered_in_its_own_shape() -> None:
    whole = repaired(Conversation(messages=PYDANTIC_AI), "answer")
    result = {"part_kind": "tool-return", "tool_name": "f", "tool_call_id": "a", "content": INTERRUPTED}
    assert whole.messages[-1].to_dict() == {"kind": "request", "parts": [result]}


@SHAPES
def test_take_back_ends_the_conversation_before_the_open_call(messages: list[Message]) -> None:
    assert repaired(Conversation(messages=messages), "take_back").messages == messages[:1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_whole_conversation_needs_no_repair(policy: Any) -> None:
    conversation = Conversation(messages=[*CHAT, Message.tool("2", "b")])

    assert repaired(conversation, policy) is conversation
