"""A message is whatever JSON object a provider sent; it is read, never changed."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from celery_ckpt import Message, ToolCall
from celery_ckpt.errors import NotJson

SHAPES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "support/provider_messages.json").read_text(encoding="utf-8")
)
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def text_of(value: Any) -> str:
    """Return JSON text, which distinguishes 1 from true and from 1.0, and 0.0 from -0.0.
    Python's == does not.
    """
    return json.dumps(value)


@EVERY_SHAPE
def test_every_provider_shape_is_returned_exactly(shape: dict[str, Any]) -> None:
    assert text_of(Message.model_validate(shape).to_dict()) == text_of(shape)


@EVERY_SHAPE
def test_every_provider_shape_round_trips_through_its_json_line(shape: dict[str, Any]) -> None:
    line = Message.of(shape).to_json()
    assert b"\n" not in line
    assert text_of(Message.model_validate_json(line).to_dict()) == text_of(shape)


def test_the_argument_text_of_a_call_is_kept_byte_for_byte() -> None:
    arguments = '{ "a":\t1.0,\n"a": 1e0, "z": "\\u00fc\\/" }'
    function = {"name": "f", "arguments": arguments}
    message = Message.assistant(tool_calls=[{"id": "1", "type": "function", "function": function}])
    assert message.to_dict()["tool_calls"][0]["function"]["arguments"] == arguments
    assert message.tool_calls[0].input == arguments


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Message.system("s"), {"role": "system", "content": "s"}),
        (Message.user("u", name="n"), {"role": "user", "content": "u", "name": "n"}),
        (Message.user([{"type": "text"}]), {"role": "user", "content": [{"type": "text"}]}),
        (Message.assistant(), {"role": "assistant", "content": None}),
        (
            Message.assistant("a", tool_calls=[]),
            {"role": "assistant", "content": "a", "tool_calls": []},
        ),
        (Message.tool("r", "call_1"), {"role": "tool", "tool_call_id": "call_1", "content": "r"}),
    ],
)
def test_the_shorthand_constructors_produce_the_chat_shape(
    made: Message, expected: dict[str, Any]
) -> None:
    assert made.to_dict() == expected
    assert made == Message.model_validate(expected)


def test_messages_compare_by_value() -> None:
    assert Message.user("a") == Message.of({"content": "a", "role": "user"})
    assert Message.user("a") != Message.user("b")


def test_a_message_created_from_a_message_is_the_same() -> None:
    message = Message.user("a")
    assert Message.of(message) is message
    assert Message.model_validate(message) == message


@pytest.mark.parametrize(
    "duplicate", [lambda m: m, copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_a_decoded_message_equals_one_validated_by_pydantic(duplicate: Any) -> None:
    decoded = duplicate(Message.decoded({"role": "user", "content": [1, {"a": None}]}))
    checked = Message.model_validate({"role": "user", "content": [1, {"a": None}]})

    assert decoded == checked
    assert decoded.model_fields_set == checked.model_fields_set
    assert decoded.__dict__ == checked.__dict__
    assert decoded.model_dump_json() == checked.model_dump_json()
    assert repr(decoded) == repr(checked)


def test_a_message_does_not_share_data_with_the_caller() -> None:
    blocks = [{"type": "text", "text": "before"}]
    message = Message.user(blocks)
    blocks[0]["text"] = "after"
    assert message.text == "before"


def test_changing_what_a_message_returns_does_not_change_it() -> None:
    message = Message.of(SHAPES["anthropic: whole response"])
    message.to_dict()["content"].clear()
    message.model_dump()["content"][5]["input"].clear()
    message.tool_calls[0].input["days"].append(3)
    message.tool_calls[0].arguments["days"].append(3)
    assert message.to_dict() == SHAPES["anthropic: whole response"]


def test_arguments_are_a_new_copy_each_time() -> None:
    call = ToolCall(id="1", name="f", input={"days": [1]})
    call.arguments["days"].append(2)
    assert call.arguments == {"days": [1]}


def test_a_message_is_frozen() -> None:
    message = Message.user("a")
    with pytest.raises(ValidationError, match="frozen"):
        message.root = {}


@pytest.mark.parametrize("value", ["text", None, 3, ["role"], b"{}", object()])
def test_only_an_object_can_be_a_message(value: Any) -> None:
    with pytest.raises(NotJson, match=r"A message is of type .*, not an object"):
        Message.of(value)


def test_validation_by_pydantic_names_the_path_too() -> None:
    with pytest.raises(ValidationError, match=r"message\.content\[1\]\.x is nan"):
        Message.model_validate({"content": [{}, {"x": float("nan")}]})


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("chat: developer", "Be brief."),
        ("chat: user with parts", "What is this? \u2028 \x00 😀"),
        ("chat: tool result", "12 °C"),
        ("chat: function result", ""),
        ("responses: message", "It is raining."),
        ("responses: reasoning", ""),
        ("anthropic: whole response", "I will look."),
        ("anthropic: tool results", ""),
        ("nobody's", ""),
    ],
)
def test_text_returns_the_text_of_every_shape(shape: str, text: str) -> None:
    assert Message.of(SHAPES[shape]).text == text


@pytest.mark.parametrize(
    ("shape", "role"),
    [("chat: developer", "developer"), ("responses: function call", None), ("nobody's", None)],
)
def test_the_role_is_read_if_there_is_one(shape: str, role: str | None) -> None:
    assert Message.of(SHAPES[shape]).role == role


SHAPE_CALLS: dict[str, list[tuple[str, str, Any]]] = {
    "chat: parallel tool calls, byte-exact arguments, null content": [
        ("call_1", "weather", '{ "city" : "Z\\u00fcrich",\n "n": 1.0 }'),
        ("call_2", "now", ""),
        ("call_3", "shell", "ls -la\n"),
    ],
    "responses: function call": [("call_1", "weather", '{"city":"Oslo"}')],
    "responses: custom tool call": [("call_2", "sql", "select 1")],
    "responses: computer call": [
        ("call_3", "computer", {"type": "click", "x": 10, "y": 20, "button": "left"})
    ],
    "anthropic: whole response": [
        ("toolu_1", "weather", {"city": "Oslo", "days": [1, 2]}),
        ("toolu_2", "now", {}),
    ],
    "pydantic-ai: response": [
        ("call_1", "weather", '{ "city" : "Z\\u00fcrich",\n "n": 1.0 }'),
        ("call_2", "now", {"zone": "utc"}),
        ("call_3", "ping", {}),
    ],
}


@EVERY_SHAPE
def test_only_client_side_calls_are_listed(shape: dict[str, Any]) -> None:
    name = next(name for name, known in SHAPES.items() if known is shape)
    calls = [(call.id, call.name, call.input) for call in Message.of(shape).tool_calls]
    assert calls == SHAPE_CALLS.get(name, [])


@pytest.mark.parametrize(
    ("given", "arguments"),
    [('{"n": 1}', {"n": 1}), ("", {}), ({"n": [1]}, {"n": [1]}), ({}, {})],
)
def test_arguments_are_read_from_text_and_from_objects(given: Any, arguments: dict[str, Any]) -> None:
    assert ToolCall(id="1", name="f", input=given).arguments == arguments


@pytest.mark.parametrize("given", ["{", "[1]", "3", None, [1], '{"n": NaN}', '{"s": "\\ud800"}'])
def test_arguments_that_are_not_an_object_raise_an_error_that_names_the_call(given: Any) -> None:
    with pytest.raises(ValueError, match=r"tool call call_7 to 'f' are not"):
        _ = ToolCall(id="call_7", name="f", input=given).arguments


@pytest.mark.parametrize(
    ("message", "answers"),
    [
        (SHAPES["chat: tool result"], ["call_1"]),
        (SHAPES["responses: function call output"], ["call_1"]),
        ({"type": "tool_search_output", "call_id": "call_1", "tools": []}, ["call_1"]),
        ({"type": "local_shell_call_output", "id": "call_1", "output": "{}"}, ["call_1"]),
        (SHAPES["anthropic: tool results"], ["toolu_1", "toolu_2"]),
        (SHAPES["anthropic: whole response"], []),
        ({"role": "tool", "tool_call_id": 3}, []),
    ],
)
def test_answers_lists_the_calls_whose_results_a_message_contains(
    message: dict[str, Any], answers: list[str]
) -> None:
    assert Message.of(message).answers == answers


@pytest.mark.parametrize("kind", [[], {}, [["text"]], 7, None])
def test_text_is_read_next_to_blocks_whose_type_is_not_text(kind: Any) -> None:
    blocks = [{"type": kind, "text": "not this"}, {"type": "text", "text": "this"}]
    assert Message.model_validate({"role": "user", "content": blocks}).text == "this"


def test_messages_of_pydantic_ai_say_who_speaks_and_what() -> None:
    asked = Message.of(SHAPES["pydantic-ai: request"])
    assert (asked.role, asked.text) == ("user", "What is this?")
    replied = Message.of(SHAPES["pydantic-ai: response"])
    assert (replied.role, replied.text) == ("assistant", "Let me see.")
    assert Message.of(SHAPES["pydantic-ai: tool returns"]).role == "tool"
    system = Message.of({"kind": "request", "parts": [{"part_kind": "system-prompt", "content": "s"}]})
    assert (system.role, system.text) == ("system", "s")


def test_tool_calls_of_pydantic_ai_are_paired_with_their_results() -> None:
    replied = Message.of(SHAPES["pydantic-ai: response"])
    calls = {call.id: (call.name, call.arguments) for call in replied.tool_calls}
    assert calls == {
        "call_1": ("weather", {"city": "Zürich", "n": 1.0}),
        "call_2": ("now", {"zone": "utc"}),
        "call_3": ("ping", {}),
    }
    assert Message.of(SHAPES["pydantic-ai: tool returns"]).answers == ["call_1", "call_2", "call_3"]


def test_what_asks_for_no_call_of_ours_in_pydantic_ai_is_no_call_and_no_result() -> None:
    of_provider = Message.of(SHAPES["pydantic-ai: tools of the provider"])
    assert (of_provider.tool_calls, of_provider.answers) == ([], [])
    assert Message.of(SHAPES["pydantic-ai: retry of the output"]).answers == []


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "request"},
        {"kind": "response", "parts": None},
        {"kind": "response", "parts": [None, 1, {}, {"part_kind": []}]},
        {"kind": [], "parts": [{"part_kind": "text", "content": "x"}]},
        {"role": "user", "kind": "request", "parts": [], "content": "x"},
    ],
    ids=str,
)
def test_a_message_that_only_resembles_one_of_pydantic_ai_can_be_read(odd: dict[str, Any]) -> None:
    message = Message.of(odd)
    assert (message.tool_calls, message.answers) == ([], [])
    assert message.role in (odd.get("role"), "assistant")
    assert isinstance(message.text, str)
