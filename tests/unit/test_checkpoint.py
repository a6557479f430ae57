"""A checkpoint is a complete snapshot that nothing can change."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from celery_ckpt import Checkpoint, CheckpointEvent, Conversation, Entry, Message
from celery_ckpt.errors import InvalidName
from celery_ckpt.names import names_its_agent

FIELDS = ("id", "agent_id", "conversation", "iteration", "metadata", "created_at", "state", "event")


def checkpoint_of(agent_id: str = "agent-1", iteration: int = 1, **fields: Any) -> Checkpoint:
    conversation = Conversation(100_000).with_system_prompt("test")
    return Checkpoint.new(agent_id, conversation, iteration, **fields)


@pytest.fixture
def full() -> Checkpoint:
    """Return a checkpoint that has everything."""
    return checkpoint_of(
        state={"plan": ["a", {"b": 1}]},
        metadata={"phase": "execute"},
        event=CheckpointEvent.LLM_RESPONSE,
        run_id="run-1",
        entry=Entry(conversation=Conversation(), state={"plan": []}),
    )


def test_a_new_checkpoint_names_its_agent_and_position() -> None:
    checkpoint = checkpoint_of("agent-1", 5)
    assert (checkpoint.agent_id, checkpoint.iteration) == ("agent-1", 5)
    assert names_its_agent(checkpoint.id, "agent-1")
    assert checkpoint.conversation.messages == [Message.system("test")]
    assert (checkpoint.metadata, checkpoint.state) == ({}, {})
    assert (checkpoint.event, checkpoint.run_id, checkpoint.entry) == (None, None, None)


def test_its_time_is_the_current_time_in_utc() -> None:
    before = datetime.now(UTC)
    created_at = checkpoint_of().created_at
    assert before <= created_at <= datetime.now(UTC)
    assert created_at.tzinfo is UTC


def test_a_given_time_is_kept_in_utc() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    created_at = checkpoint_of(created_at=noon).created_at
    assert created_at.isoformat() == "2026-01-01T10:00:00+00:00"


def test_metadata_is_added_to_a_new_checkpoint(full: Checkpoint) -> None:
    more = full.with_metadata("bead_id", "smooth-abc").with_metadata("phase", "verify")
    assert more.metadata == {"phase": "verify", "bead_id": "smooth-abc"}
    assert full.metadata == {"phase": "execute"}
    assert more.with_metadata("phase", "execute").id == full.id
    assert more.model_copy(update={"metadata": full.metadata}) == full


@pytest.mark.parametrize("field", [*FIELDS, "run_id", "entry", "unheard_of"])
def test_no_attribute_can_be_set_or_deleted(full: Checkpoint, field: str) -> None:
    before = pickle.loads(pickle.dumps(full))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(full, field, {})
    with pytest.raises((ValidationError, AttributeError)):
        delattr(full, field)
    assert full == before


def test_changing_what_was_read_from_it_does_not_change_it(full: Checkpoint) -> None:
    before = pickle.loads(pickle.dumps(full))
    full.state["plan"][1]["b"] = 2
    full.metadata["phase"] = "other"
    full.conversation.append(Message.user("more"))
    full.conversation.replace([])
    full.conversation.messages.clear()
    full.conversation.messages[0].to_dict().clear()
    assert full.entry is not None
    full.entry.state["plan"].append(1)
    full.entry.conversation.append(Message.user("more"))
    full.model_dump()["state"]["plan"].clear()
    assert full == before


def test_changing_what_it_was_created_from_does_not_change_it() -> None:
    conversation, entered = Conversation(), Conversation()
    state, metadata = {"plan": [1]}, {"phase": "a"}
    entry = Entry(conversation=entered, state=state)
    checkpoint = Checkpoint.new("a", conversation, 1, state=state, metadata=metadata, entry=entry)
    state["plan"].append(2)
    metadata["phase"] = "b"
    conversation.append(Message.user("more"))
    entered.append(Message.user("more"))
    assert checkpoint.entry is not None
    assert checkpoint.state == checkpoint.entry.state == {"plan": [1]}
    assert checkpoint.metadata == {"phase": "a"}
    assert checkpoint.conversation == checkpoint.entry.conversation == Conversation()


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"agent_id": "other"},
        {"conversation": Conversation()},
        {"iteration": 2},
        {"metadata": {}},
        {"created_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"state": {}},
        {"event": None},
        {"run_id": None},
        {"entry": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_two_checkpoints_are_equal_only_if_every_field_is(
    full: Checkpoint, change: dict[str, Any]
) -> None:
    assert Checkpoint(**full.__dict__) == full
    assert Checkpoint(**{**full.__dict__, **change}) != full


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda c: pickle.loads(pickle.dumps(c)),
        lambda c: Checkpoint.model_validate(c.model_dump()),
        lambda c: Checkpoint.model_validate_json(c.model_dump_json()),
    ],
    ids=["copy", "deepcopy", "pickle", "model_dump", "model_dump_json"],
)
def test_every_kind_of_copy_is_equal(full: Checkpoint, duplicate: Any) -> None:
    assert duplicate(full) == full


@pytest.mark.parametrize("agent_id", ["", "x" * 513, "\ud800"])
def test_a_name_that_cannot_be_stored_is_refused_at_creation(agent_id: str) -> None:
    with pytest.raises(InvalidName, match="An agent_id"):
        checkpoint_of(agent_id)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": ""}, "A checkpoint id must be text of 1 to 512 characters"),
        ({"agent_id": b"a"}, "An agent_id must be text"),
        ({"run_id": "x" * 513}, "A run_id must be text of 1 to 512 characters"),
        ({"iteration": -1}, "iteration"),
        ({"created_at": datetime(2026, 1, 1)}, "timezone"),
        ({"state": {"a": [float("nan")]}}, r"state\.a\[0\] is nan"),
        ({"state": {b"a": 1}}, "state has a key of type bytes"),
        ({"state": [1]}, "state"),
        ({"metadata": {"a": 1}}, r"metadata\.a"),
        ({"metadata": {"a": b"x"}}, r"metadata\.a is of type bytes"),
        ({"metadata": {"a": "\ud800"}}, r"metadata\.a contains a lone surrogate"),
        ({"event": "lunch"}, "event"),
        ({"conversation": [1]}, "expected a Conversation"),
        ({"conversation": {"messages": [{"a": b""}]}}, r"message\.a is of type bytes"),
        ({"seq": 1}, "seq"),
    ],
)
def test_an_invalid_field_is_an_error_that_names_it(
    full: Checkpoint, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpoint(**{**full.__dict__, **fields})


def test_checkpoints_without_usage_share_one_usage_object() -> None:
    """Pydantic copies a default that has no hash, which made every save slower."""
    one, other = (Checkpoint.new("a", Conversation(), 1) for _ in range(2))
    assert one.usage is other.usage
