"""What ``to_bytes`` wrote is read back exactly. Anything else is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_ckpt import Checkpoint, CheckpointEvent, Conversation, Entry, Message
from celery_ckpt.errors import NotACheckpoint, SchemaTooNew
from celery_ckpt.json_values import MAX_DEPTH


def said(*texts: str) -> list[Message]:
    return [Message.user(text) for text in texts]


def prefix_entry() -> Checkpoint:
    live = Conversation(messages=said("a", "b"))
    entry = Entry(conversation=live, state={"n": 1})
    live.append(Message.user("c"))
    return Checkpoint.new("agent-1", live, 2, entry=entry, state={"n": 2})


def entry_ahead() -> Checkpoint:
    ahead = Conversation(messages=said("a"))
    behind = ahead.copy()
    ahead.append(Message.user("b"))
    return Checkpoint.new("agent-1", behind, 2, entry=Entry(conversation=ahead))


def entry_before_a_compaction(*kept: str) -> Checkpoint:
    live = Conversation(50, said("a", "b", "c"))
    entry = Entry(conversation=live)
    live.replace(said(*kept))
    return Checkpoint.new("agent-1", live, 2, entry=entry)


def deepest() -> Checkpoint:
    value: Any = 0
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    conversation = Conversation(messages=[{"k": value}])
    entry = Entry(conversation=Conversation(), state={"k": value})
    return Checkpoint.new("a", conversation, 1, state={"k": value}, entry=entry)


ROUND_TRIPS: dict[str, Callable[[], Checkpoint]] = {
    "bare": lambda: Checkpoint.new("agent-1", Conversation(), 0),
    "as in the beginning": lambda: Checkpoint.new(
        "agent-1", Conversation(100_000).with_system_prompt("test"), 3
    ),
    "everything set": lambda: Checkpoint.new(
        "a\u2028😀\x00",
        Conversation(7, said("\u2028", "\x00")),
        10**12,
        state={"f": [1e22, -0.0, 2**200], "": None},
        metadata={"k": "ü", "": ""},
        event=CheckpointEvent.TOOL_CALL_COMPLETE,
        run_id="run-1",
    ),
    "before 1970": lambda: Checkpoint(
        id="x",
        agent_id="a",
        conversation=Conversation(),
        iteration=0,
        created_at=datetime(1905, 6, 30, 1, 2, 3, 456789, tzinfo=UTC),
    ),
    "entry is a prefix": prefix_entry,
    "entry is ahead": entry_ahead,
    "entry is all": lambda: Checkpoint.new(
        "a", Conversation(messages=said("a")), 1, entry=Entry(conversation=Conversation(5, said("a")))
    ),
    "entry is empty": lambda: Checkpoint.new(
        "a", Conversation(messages=said("a")), 1, entry=Entry(conversation=Conversation())
    ),
    "compacted to nothing": lambda: entry_before_a_compaction(),
    "compacted to a summary": lambda: entry_before_a_compaction("summary"),
    "compacted from the end": lambda: entry_before_a_compaction("a", "b"),
    "compacted in the middle": lambda: entry_before_a_compaction("a", "summary", "c", "d"),
    "as deep as allowed": deepest,
}


@pytest.mark.parametrize("make", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_a_checkpoint_round_trips_through_its_bytes(make: Callable[[], Checkpoint]) -> None:
    checkpoint = make()
    restored = Checkpoint.from_bytes(checkpoint.to_bytes())
    assert restored == checkpoint
    assert restored.to_bytes() == checkpoint.to_bytes()
    assert restored.conversation.digest == checkpoint.conversation.digest


@pytest.mark.parametrize("other", [{"n": True}, {"n": 1.0}, {"m": 0, "n": 1}], ids=str)
def test_an_entry_keeps_messages_that_almost_equal_those_of_the_conversation(
    other: dict[str, Any],
) -> None:
    first = {"n": 1, "m": 0} if "m" in other else {"n": 1}
    entry = Entry(conversation=Conversation(messages=[first]))
    checkpoint = Checkpoint.new("a", Conversation(messages=[other]), 1, entry=entry)
    restored = Checkpoint.from_bytes(checkpoint.to_bytes())
    assert restored.entry is not None
    assert restored.entry.conversation.digest == entry.conversation.digest


def test_an_entry_that_is_a_prefix_is_written_as_a_number() -> None:
    found = json.loads(prefix_entry().to_bytes())
    assert len(found["messages"]) == 3
    assert found["header"]["entry"] == {"kept": 2, "state": {"n": 1}}


def test_the_bytes_are_json_with_a_format_version() -> None:
    found = json.loads(prefix_entry().to_bytes())
    assert found["format"] == 1
    assert found["agent_id"] == "agent-1"


def test_a_restored_conversation_grows_independently() -> None:
    restored = Checkpoint.from_bytes(prefix_entry().to_bytes())
    assert restored.entry is not None
    again = restored.entry.conversation
    again.append(Message.user("other"))
    assert [message.text for message in again] == ["a", "b", "other"]
    assert [message.text for message in restored.conversation] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x00", b"\x80\x05.", b"{", b"null", b"[]", b"3", b'"text"', b"{}", b'{"format":1}'),
        *(b'{"role":"user","content":"hi"}', b'{"format":"1"}', b'{"format":0}', b'{"format":null}'),
        *(prefix_entry().to_bytes()[:-1], prefix_entry().to_bytes() + b"x", b"[" * 100_000),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_anything_else_is_not_a_checkpoint(data: bytes) -> None:
    with pytest.raises(NotACheckpoint, match="These bytes are not a checkpoint"):
        Checkpoint.from_bytes(data)


def test_a_message_count_that_is_not_an_integer_is_refused() -> None:
    found = json.loads(Checkpoint.new("a", Conversation(messages=said("a")), 1).to_bytes())
    found["header"]["messages"] = 1.0
    with pytest.raises(NotACheckpoint, match=r"1 messages instead of 1\.0"):
        Checkpoint.from_bytes(json.dumps(found).encode())


@pytest.mark.parametrize("more", [{}, {"header": "unreadable", "messages": None}])
def test_a_newer_format_is_refused_before_anything_else_is_read(more: dict[str, Any]) -> None:
    with pytest.raises(SchemaTooNew, match="Upgrade celery_ckpt") as refused:
        Checkpoint.from_bytes(json.dumps({"format": 2, **more}).encode())
    assert (refused.value.version, refused.value.supported) == (2, 1)


ODD = st.sampled_from([None, True, -1, 0, 1, 2, 1.0, 1.5, 10**30, "", "x", [], [1], {}, {"x": 1}])
PLACES = st.sampled_from(
    [("id",), ("agent_id",), ("messages",), ("messages", 0), ("header",), ("header", "entry")]
    + [("header", name) for name in ("created_at", "messages", "iteration", "state", "metadata")]
    + [("header", name) for name in ("event", "run_id", "max_tokens", "id", "conversation", "odd")]
    + [("header", "entry", name) for name in ("kept", "state", "max_tokens", "conversation", "odd")]
)


@given(PLACES, ODD)
@example(("header", "entry", "kept"), 2.0)
def test_foreign_json_is_refused_or_read_completely(place: tuple[Any, ...], odd: Any) -> None:
    found = json.loads(prefix_entry().to_bytes())
    *parents, last = place
    inside = found
    for name in parents:
        inside = inside[name]
    inside[last] = odd
    try:
        checkpoint = Checkpoint.from_bytes(json.dumps(found).encode())
    except NotACheckpoint:
        return
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
