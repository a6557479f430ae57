"""Messages as text for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_ckpt import Message
from celery_ckpt.views.transcript import Kind, pieces, speaker

MESSAGES = json.loads((Path(__file__).parents[2] / "support/provider_messages.json").read_text())


def words(message: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    made = Message.of(message)
    return speaker(made), [(piece.kind.value, piece.text) for piece in pieces(made)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat: developer", ("developer", [("text", "Be brief.")])),
        (
            "chat: parallel tool calls, byte-exact arguments, null content",
            (
                "assistant",
                [
                    ("call", 'weather(city="Zürich", n=1.0)'),
                    ("call", "now()"),
                    ("call", "shell(ls -la\n)"),
                ],
            ),
        ),
        ("chat: legacy function call", ("assistant", [("call", "f()")])),
        ("chat: tool result", ("tool", [("result", "12 °C")])),
        (
            "responses: message",
            ("assistant", [("text", "It is "), ("text", "raining."), ("text", "refused: no")]),
        ),
        ("responses: reasoning", ("assistant", [("thinking", "Hm.")])),
        ("responses: function call", ("assistant", [("call", 'weather(city="Oslo")')])),
        ("responses: custom tool call", ("assistant", [("call", "sql(select 1)")])),
        (
            "responses: computer call",
            ("assistant", [("call", 'computer(type="click", x=10, y=20, button="left")')]),
        ),
        ("responses: function call output", ("tool", [("result", "rain")])),
        (
            "responses: web search call",
            ("assistant", [("call", 'web_search(type="search", query="rain")')]),
        ),
        (
            "responses: item reference",
            ("item_reference", [("other", '{"type":"item_reference","id":"msg_1"}')]),
        ),
        (
            "anthropic: tool results",
            ("user", [("result", "rain\n[image, 68 bytes]"), ("result", "failed: no clock")]),
        ),
        (
            "pydantic-ai: request",
            (
                "user",
                [
                    ("text", "Be brief."),
                    ("text", "What is this?"),
                    ("other", "[image-url, 141 bytes]"),
                    ("other", "[binary, 105 bytes]"),
                ],
            ),
        ),
        (
            "pydantic-ai: response",
            (
                "assistant",
                [
                    ("thinking", "Hm."),
                    ("thinking", "(redacted)"),
                    ("text", "Let me see."),
                    ("call", 'weather(city="Zürich", n=1.0)'),
                    ("call", 'now(zone="utc")'),
                    ("call", "ping()"),
                ],
            ),
        ),
        (
            "pydantic-ai: tool returns",
            (
                "tool",
                [
                    ("result", '{"c":12.5}'),
                    ("result", "failed: no such zone"),
                    ("result", "failed: no route"),
                ],
            ),
        ),
        (
            "pydantic-ai: retry of the output",
            (
                "user",
                [("text", '[{"type":"missing","loc":["city"],"msg":"Field required","input":{}}]')],
            ),
        ),
        (
            "pydantic-ai: tools of the provider",
            (
                "assistant",
                [
                    ("call", 'web_search(query="rain")'),
                    ("result", '{"status":"completed"}'),
                    ("other", "[file, 142 bytes]"),
                    ("text", "It rains."),
                    ("other", '{"later":[1.0],"part_kind":"invented-later"}'),
                ],
            ),
        ),
    ],
)
def test_messages_of_each_provider_are_transcribed_the_same_way(name: str, expected: Any) -> None:
    assert words(MESSAGES[name]) == expected


def test_a_complete_anthropic_response_keeps_its_order() -> None:
    _, found = words(MESSAGES["anthropic: whole response"])
    assert [kind for kind, _ in found] == [
        *("thinking", "thinking", "text", "call", "result", "call", "call", "other"),
    ]
    assert found[5] == ("call", 'weather(city="Oslo", days=[1,2])')


def test_images_and_audio_are_named_but_not_shown() -> None:
    _, found = words(MESSAGES["chat: user with parts"])
    assert [text for _, text in found[1:]] == ["[image_url, 88 bytes]", "[input_audio, 71 bytes]"]


def test_calls_next_to_a_list_of_blocks_are_listed_once() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    blocks = [{"type": "text", "text": "so"}, {"type": "tool_use", "id": "t", "name": "g", "input": {}}]
    _, found = words({"role": "assistant", "content": blocks, "tool_calls": [call]})
    assert found == [("text", "so"), ("call", "g()"), ("call", "f()")]


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = (
    SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)
)
FIELDS = st.sampled_from(
    ["role", "type", "content", "tool_calls", "function_call", "output", "summary", "text", "refusal"]
)
WORDS = st.sampled_from(["tool", "function_call", "tool_use", "x_output", "reasoning", "text", "image"])


BLOCKS = st.lists(st.dictionaries(FIELDS, JSON | WORDS, max_size=3), max_size=3)


@example({"type": ""})
@given(st.dictionaries(FIELDS, JSON | WORDS | BLOCKS, max_size=4))
def test_any_object_can_be_transcribed(message: dict[str, Any]) -> None:
    who, found = words(message)
    assert who
    assert found
    assert all(isinstance(text, str) and kind in set(Kind) for kind, text in found)
