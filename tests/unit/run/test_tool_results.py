"""Results of tool calls: in each provider's shape, in the order of the calls."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from celery_ckpt import Conversation, Message, ToolCall
from celery_ckpt.run.tool_results import ToolResults, result_message
from tests.support.provider_agents import SHAPES

IDS = ["a", "b", "c"]


def asked(shape: str, ids: list[str] = IDS) -> Conversation:
    said = SHAPES[shape]("so", [(i, "{}") for i in ids])
    return Conversation(messages=said if isinstance(said, list) else [said])


def call(call_id: str) -> ToolCall:
    return ToolCall(id=call_id, name="f")


def added(conversation: Conversation, before: int) -> list[dict[str, Any]]:
    return [message.to_dict() for message in conversation.messages[before:]]


def expected(shape: str, ids: list[str] = IDS) -> list[dict[str, Any]]:
    if shape == "chat":
        return [{"role": "tool", "tool_call_id": i, "content": f"result {i}"} for i in ids]
    if shape == "responses":
        return [{"type": "function_call_output", "call_id": i, "output": f"result {i}"} for i in ids]
    blocks = [{"type": "tool_result", "tool_use_id": i, "content": f"result {i}"} for i in ids]
    return [{"role": "user", "content": blocks}]


@pytest.mark.parametrize("order", list(permutations(IDS)), ids="".join)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_appended_in_the_order_of_the_calls(shape: str, order: tuple[str, ...]) -> None:
    conversation, answers = asked(shape), ToolResults()
    before = len(conversation)
    for call_id in order:
        answers.add(conversation, call(call_id), f"result {call_id}")
    assert added(conversation, before) == expected(shape)
    assert conversation.pending_tool_calls() == []


@pytest.mark.parametrize("shape", ["chat", "responses"])
def test_openai_results_are_appended_up_to_the_first_gap(shape: str) -> None:
    conversation, answers = asked(shape), ToolResults()
    before = len(conversation)
    answers.add(conversation, call("c"), "result c")
    assert added(conversation, before) == []
    answers.add(conversation, call("a"), "result a")
    assert added(conversation, before) == expected(shape, ["a"])


def test_anthropic_results_are_appended_together() -> None:
    conversation, answers = asked("anthropic"), ToolResults()
    for call_id in "ab":
        answers.add(conversation, call(call_id), f"result {call_id}")
        assert len(conversation) == 1
    answers.add(conversation, call("c"), "result c")
    assert added(conversation, 1) == expected("anthropic")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_flush_leaves_nothing_behind(shape: str) -> None:
    conversation, answers = asked(shape), ToolResults()
    before = len(conversation)
    for call_id in "cb":
        answers.add(conversation, call(call_id), f"result {call_id}")
    answers.flush(conversation)
    assert added(conversation, before) == expected(shape, ["b", "c"])
    answers.flush(conversation)
    assert len(added(conversation, before)) == len(expected(shape, ["b", "c"]))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_is_answered_once(shape: str) -> None:
    conversation, answers = asked(shape), ToolResults()
    before = len(conversation)
    for call_id in [*"cca", *"abc", *"abc"]:
        answers.add(conversation, call(call_id), f"result {call_id}")
    answers.flush(conversation)
    assert added(conversation, before) == expected(shape)


def test_a_held_result_that_the_body_has_appended_itself_is_discarded() -> None:
    conversation, answers = asked("chat"), ToolResults()
    answers.add(conversation, call("b"), "held")
    for call_id in IDS:
        conversation.append(Message.tool("manually", call_id))
    answers.flush(conversation)
    assert len(conversation) == 4


def test_a_result_without_a_matching_call_is_appended_once_in_the_chat_shape() -> None:
    conversation, answers = Conversation(), ToolResults()
    for _ in range(2):
        answers.add(conversation, call("x"), "found")
    assert added(conversation, 0) == [{"role": "tool", "tool_call_id": "x", "content": "found"}]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_whose_call_was_compacted_is_kept(shape: str) -> None:
    conversation, answers = asked(shape), ToolResults()
    answers.add(conversation, call("b"), "result b")
    conversation.replace([Message.user("summary")])
    answers.flush(conversation)
    assert added(conversation, 1) == expected(shape, ["b"])


@pytest.mark.parametrize("shape", SHAPES)
def test_reused_ids_are_answered_again(shape: str) -> None:
    conversation, answers = asked(shape), ToolResults()
    for call_id in IDS:
        answers.add(conversation, call(call_id), f"result {call_id}")
    for message in asked(shape):
        conversation.append(message)
    before = len(conversation)
    for call_id in reversed(IDS):
        answers.add(conversation, call(call_id), f"result {call_id}")
    assert added(conversation, before) == expected(shape)


def test_a_result_belongs_to_the_message_that_requested_it() -> None:
    first, second = (SHAPES["chat"](text, [("a", "{}")]) for text in ("one", "two"))
    conversation, answers = Conversation(messages=[first]), ToolResults()
    answers.add(conversation, call("a"), "1", Message.of(first))
    conversation.append(second)
    answers.add(conversation, call("a"), "1", Message.of(first))
    assert len(conversation) == 3
    answers.add(conversation, call("a"), "2", Message.of(second))
    assert conversation.messages[-1].text == "2"


def test_the_result_of_a_later_message_does_not_answer_an_earlier_one() -> None:
    first, second = (SHAPES["chat"](text, [("a", "{}")]) for text in ("one", "two"))
    messages = [first, Message.user("well?"), second, Message.tool("2", "a")]
    conversation, answers = Conversation(messages=messages), ToolResults()
    answers.add(conversation, call("a"), "1", Message.of(first))
    assert conversation.messages[-1].text == "1"


def test_an_id_used_twice_in_one_message_is_answered_twice() -> None:
    conversation, answers = asked("chat", ["", ""]), ToolResults()
    for text in ("1", "2", "3"):
        answers.add(conversation, call(""), text)
    assert [message.text for message in conversation.messages[1:]] == ["1", "2"]


def test_a_custom_tool_of_the_responses_api_has_its_own_output() -> None:
    asking = Message.of({"type": "custom_tool_call", "call_id": "x", "name": "f", "input": "text"})
    expected = {"type": "custom_tool_call_output", "call_id": "x", "output": "ok"}
    assert result_message(asking, call("x"), "ok").to_dict() == expected


@pytest.mark.parametrize(
    ("result", "text"),
    [("a 'text'", "a 'text'"), ({"ü": [1, None]}, '{"ü":[1,null]}'), (None, "null"), (True, "true")],
)
def test_text_is_written_unchanged_and_everything_else_as_compact_json(result: Any, text: str) -> None:
    assert result_message(None, call("x"), result).text == text
