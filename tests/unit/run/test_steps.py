"""How a call is recognised: fingerprints that are the same in every process, keys, and counting."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from celery_ckpt import Conversation, Message, ToolCall
from celery_ckpt.names import MAX_NAME_LENGTH
from celery_ckpt.records import Step
from celery_ckpt.run.steps import StepBook, call_key, fingerprint, nested_key, step_key


class Query(BaseModel):
    text: str


class Other(BaseModel):
    text: str


def of(*args: Any, **kwargs: Any) -> str:
    return fingerprint(args, kwargs)


def talk(*texts: str) -> Conversation:
    return Conversation(messages=[Message.user(text) for text in texts])


SAME = {
    "keys in another order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a tuple for a list": ((1, [2]), [1, (2,)]),
    "an equal conversation": ([talk("a", "b")], [talk("a", "b")]),
    "a message and its JSON": (Message.user("x"), {"role": "user", "content": "x"}),
    "messages and their JSON": (
        {"given": [Message.user([{"text": "x"}])]},
        {"given": [{"role": "user", "content": [{"text": "x"}]}]},
    ),
    "an equal model": (Query(text="a"), Query(text="a")),
    "objects of one type": (object(), object()),
    "functions": (lambda: 1, lambda: 2),
    "deep inside": ({"a": [(object(), talk("x"))]}, {"a": [(object(), talk("x"))]}),
}
DIFFERENT = {
    "another number": (1, 2),
    "a number and its text": (1, "1"),
    "true and one": (True, 1),
    "another conversation": (talk("a"), talk("a", "b")),
    "a model of another type": (Query(text="a"), Other(text="a")),
    "another model": (Query(text="a"), Query(text="b")),
    "objects of other types": (object(), ValueError()),
    "a key and its text": ({1: 0}, {"1": 0}),
    "messages in another order": ([*talk("a", "b")], [*talk("b", "a")]),
}


@pytest.mark.parametrize("case", SAME)
def test_equal_arguments_have_the_same_fingerprint(case: str) -> None:
    one, other = SAME[case]
    assert of(one) == of(other)
    assert of(x=one) == of(x=other)


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_arguments_have_different_fingerprints(case: str) -> None:
    one, other = DIFFERENT[case]
    assert of(one) != of(other)
    assert of(x=[one]) != of(x=[other])


def test_the_name_changes_the_fingerprint() -> None:
    assert len({of(1), of(a=1), of(b=1), of()}) == 4


ODD = [float("nan"), float("inf"), "\ud800", 10**5000, b"x", {1, 2}, {b"k": 1}]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_every_value_has_a_fingerprint(odd: Any) -> None:
    assert of(odd) == of(odd) != of()


def test_a_self_referencing_value_has_a_fingerprint() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert of(loop)


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = (
        "from celery_ckpt.run.steps import fingerprint as of; "
        "print(of([{'b': object(), 'a': {3}}], {}))"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
        for _ in range(2)
    }
    assert runs == {fingerprint([{"a": {4}, "b": object()}], {}) + "\n"}


def test_the_fingerprint_of_messages_is_the_same_in_another_process() -> None:
    code = (
        "from celery_ckpt import Message; from celery_ckpt.run.steps import fingerprint;"
        "print(fingerprint([[Message.user('x', n=[{'b': 1, 'a': None}])]], {}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    ordered = Message.of({"n": [{"a": None, "b": 1}], "content": "x", "role": "user"})
    assert run.stdout == of([ordered]) + "\n"


@pytest.mark.parametrize("given_as", ["argument", "keyword", "inside a dict"])
def test_each_message_of_a_list_is_read_once_however_often_the_list_is_passed(
    monkeypatch: pytest.MonkeyPatch, given_as: str
) -> None:
    looked_at: list[Message] = []

    def json_object(message: Message) -> dict[str, Any]:
        looked_at.append(message)
        return message.__dict__["root"]

    def print_of(messages: list[Message]) -> str:
        if given_as == "argument":
            return of(messages)
        return of(messages=messages) if given_as == "keyword" else of({"messages": messages})

    messages = list(talk("a", "b", "c").messages)
    monkeypatch.setattr(Message, "json_object", property(json_object))
    first = print_of(messages)
    assert looked_at == messages
    assert print_of(messages) == first
    messages.append(Message.user("d"))
    looked_at.clear()
    assert print_of(messages) != first
    assert looked_at == messages[-1:]


def test_the_digest_of_a_message_is_not_copied_to_another_message() -> None:
    message = Message.user("a")
    of(message)
    other = message.model_copy(update={"root": {"role": "user", "content": "b"}})
    assert of(other) == of(Message.user("b")) != of(message)
    for same in (copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert same == message
        assert of(same) == of(message)


@given(st.text(min_size=0, max_size=2000), st.integers(0, 2**61))
def test_keys_can_always_be_stored(name: str, iteration: int) -> None:
    for key in (call_key(iteration, name), step_key(iteration, name, of(1))):
        key = f"{key}:1000000"
        assert len(key) <= MAX_NAME_LENGTH
        Step(agent_id="a", run_id="r", key=key)


def test_keys_are_readable() -> None:
    assert call_key(3, "call_1") == "3:call:call_1"
    assert step_key(3, "fetch", "abc") == "3:fetch:abc"
    assert nested_key(3, "fetch", "abc") == "3:fetch:in abc"
    assert call_key(1, "x" * 300) != call_key(1, "x" * 301)


def step(key: str, iteration: int = 1, name: str = "f", place: int | None = None) -> Step:
    run_record = {"agent_id": "a", "run_id": "r"}
    return Step(**run_record, iteration=iteration, key=key, name=name, place=place, value=key)


def test_equal_calls_are_numbered() -> None:
    book = StepBook([step("b:0"), step("b:1")])
    claimed = [book.claim("b") for _ in range(3)]
    assert [(key, found and found.value) for key, found in claimed] == [
        ("b:0", "b:0"),
        ("b:1", "b:1"),
        ("b:2", None),
    ]


def test_a_failed_call_has_the_same_key_when_it_is_repeated() -> None:
    book = StepBook([])
    key, _ = book.claim("b")
    book.release(key)
    assert book.claim("b") == (key, None)


def test_a_tool_call_is_made_as_often_as_it_was_requested() -> None:
    book = StepBook([step("1:call:x")])
    assert [book.claim_call("1:call:x", 2)[:2] for _ in range(3)] == [
        (0, "1:call:x"),
        (1, "1:call:x#1"),
        (1, "1:call:x#1"),
    ]


def test_the_earliest_matching_record_is_used() -> None:
    book = StepBook([step("old:0"), step("new:0")])
    claimed = [book.claim("new", "old", "none")[0] for _ in range(3)]
    assert claimed == ["old:0", "new:0", "new:1"]


def test_in_a_completed_iteration_a_call_is_identified_by_name_and_position() -> None:
    book = StepBook([step("1:f:aaa:0", place=1), step("1:f:bbb:0", place=2)])
    bases = ("1:f:xxx", "1:f:yyy", "1:f:bbb")
    claimed = [
        book.claim_placed(1, "f", base, book.begin(1, "f", base), beside=False)[0] for base in bases
    ]
    assert claimed == ["1:f:xxx:0", "1:f:aaa:0", "1:f:bbb:0"], "the first one failed: it has no record"


def missed(book: StepBook, iteration: int, name: str, place: int | None = None) -> bool:
    _, found = book.claim(f"{iteration}:{name}:new")
    assert found is None
    return book.replaces(iteration, name, place)


def test_a_call_in_the_position_of_another_is_an_immediate_change() -> None:
    book = StepBook([step("1:f:aaa:0", place=1)])
    assert missed(book, 1, "f", 1)
    assert not missed(book, 1, "f", 1), "each change is named once"
    assert book.changed() == []


def test_a_failed_call_leaves_a_position_without_a_record() -> None:
    book = StepBook([step("1:f:aaa:0", place=1)])
    assert not missed(book, 1, "f", 0)


def test_an_unmatched_record_of_concurrent_calls_is_a_change_when_the_iteration_ends() -> None:
    book = StepBook([step("1:f:aaa:0"), step("2:f:aaa:0", 2), step("1:g:aaa:0", 1, "g")])
    assert not missed(book, 1, "f")
    assert not missed(book, 1, "h")
    assert not missed(book, 3, "f")
    assert book.changed(3) == []
    assert book.changed(1) == ["f"]
    assert book.changed() == [], "each change is named once"


def test_a_record_that_a_later_call_matches_is_not_a_change() -> None:
    book = StepBook([step("1:f:aaa:0")])
    missed(book, 1, "f")
    book.claim("1:f:aaa")
    assert book.changed(1) == []


def test_records_inside_a_recorded_call_are_not_a_change() -> None:
    book = StepBook([step(f"{nested_key(1, 'f', 'aaa')}:0")])
    missed(book, 1, "f")
    assert book.changed(1) == []


def test_steps_of_the_current_attempt_are_not_a_change() -> None:
    book = StepBook([])
    book.keep(step("1:f:aaa:0", place=0))
    assert not missed(book, 1, "f", 0)
    assert book.changed(1) == []


def test_the_fingerprint_of_a_tool_call_depends_on_its_content() -> None:
    assert (
        of(ToolCall(id="1", name="f"))
        == of(ToolCall(id="1", name="f"))
        != of(ToolCall(id="2", name="f"))
    )
