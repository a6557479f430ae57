"""Decoding any bytes from a store or from the network gives a value or one of our errors,
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from celery_ckpt import Checkpoint, CheckpointEvent, Conversation, Message
from celery_ckpt.checkpoint import Entry, is_same
from celery_ckpt.errors import CheckpointError, NotACheckpoint, NotJson
from celery_ckpt.records import RunRecord, RunStatus, Step
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.run.tool_results import repaired
from celery_ckpt.stores.encoding import decoded_run, decoded_step, encoded
from celery_ckpt.stores.log.draft import Basis, Parts
from celery_ckpt.stores.log.reader import Reading
from celery_ckpt.stores.log.record import Record, stamp
from celery_ckpt.testing import FakeClock
from celery_ckpt.views.diff import difference
from celery_ckpt.views.transcript import pieces, speaker
from tests.fuzz.mutations import any_value, changed, mangled, mangled_bytes

LIMIT = 1 << 26


def _checkpoint() -> Checkpoint:
    conversation = Conversation(messages=[Message.system("be brief"), Message.user("hello")])
    before = Entry(conversation=conversation.copy(), state={"turn": 0})
    conversation.append({"role": "assistant", "content": [{"type": "text", "text": "hi"}]})
    return Checkpoint.new(
        "agent", conversation, 3, created_at=FakeClock().now(), run_id="run",
        event=CheckpointEvent.ITERATION, state={"sum": [1, 2.5, None]}, metadata={"a": "b"},
        entry=before,
    )  # fmt: skip


CHECKPOINT = _checkpoint()
WHOLE = CHECKPOINT.to_bytes()
DRAFT = Parts(CHECKPOINT).draft_of_all(Basis.EMPTY)
LINE = stamp(1, 7, 0, DRAFT.rest)
STEP = Step(agent_id="agent", run_id="run", key="1:k", name="k", iteration=1, value={"a": [1]})
RUN = RunRecord(
    agent_id="agent", run_id="run", task="t", status=RunStatus.SUCCEEDED, result=[1],
    created_at=FakeClock().now(), envelope={"headers": {"id": "run"}, "text": "[]"},
)  # fmt: skip
STORED_STEP, STORED_RUN = encoded(STEP, LIMIT), encoded(RUN, LIMIT)
#: The shapes of the providers' messages.
SHAPES: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "t",
     "name": "f", "input": {"x": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": True,
     "content": [{"type": "text", "text": "r"}]}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function":
     {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
    {"type": "function_call_output", "call_id": "c", "output": "r"},
    {"output": [{"type": "message", "content": [{"type": "output_text", "text": "t"}]},
     {"type": "function_call", "call_id": "d", "name": "g", "arguments": "{"}]},
)  # fmt: skip


def check_checkpoint(chance: Random) -> None:
    """Check that bytes are decoded to a checkpoint, or refused."""
    try:
        checkpoint = Checkpoint.from_bytes(mangled(chance, WHOLE))
    except CheckpointError as error:
        assert isinstance(error, NotACheckpoint) or "version" in str(error)  # noqa: PT017
    else:
        assert is_same(Checkpoint.from_bytes(checkpoint.to_bytes()), checkpoint)


def check_record(chance: Random) -> None:
    """Check that a record and its messages are decoded to the checkpoint, or reported as damaged."""
    forged = [mangled(chance, DRAFT.messages[0]) for _ in range(chance.randrange(4))]
    messages = dict(enumerate([*forged, *DRAFT.messages]))
    line = mangled_bytes(chance, LINE)
    try:
        found = Reading().checkpoint(Record.parse("agent", CHECKPOINT.id, line), messages)
    except CheckpointError as error:
        assert "agent" in str(error)  # noqa: PT017
    else:
        # The digest covers the content: no other content has it.
        assert is_same(found, CHECKPOINT)


def check_step(chance: Random) -> None:
    """Check that a step is read, or reported as damaged."""
    _check_stored(chance, decoded_step, STORED_STEP)


def check_run(chance: Random) -> None:
    """Check that a run record is read, or reported as damaged."""
    _check_stored(chance, decoded_run, STORED_RUN)


def _check_stored(chance: Random, decoded: Callable[..., Any], valid: bytes) -> None:
    try:
        found = decoded("agent", "run", mangled(chance, valid))
    except CheckpointError as error:
        assert "run" in str(error)  # noqa: PT017
    else:
        assert decoded("agent", "run", encoded(found, LIMIT)) == found


def check_policy(chance: Random) -> None:
    """Check that a policy is read, or raises a ValueError, which every store reports as damage."""
    valid = AgentPolicy(pins={"an id": "a label"}, keep=3, max_age=2.5).to_bytes()
    try:
        policy = AgentPolicy.from_bytes(mangled(chance, valid))
    except ValueError:
        return
    assert AgentPolicy.from_bytes(policy.to_bytes()) == policy


def check_conversation(chance: Random) -> None:
    """Check that messages of any shape are kept exactly or refused, and that every reader copes
    with them.
    """
    conversation = Conversation()
    for _ in range(chance.randrange(1, 6)):
        shape = chance.choice(SHAPES)
        wild = changed(chance, shape) if chance.random() < 0.8 else any_value(chance)
        if isinstance(wild, dict):
            _append(conversation, wild)
    conversation.estimated_tokens()
    for message in conversation.messages:
        assert isinstance(message.text, str)
        assert all(isinstance(call.name, str) for call in message.tool_calls)
        assert isinstance(speaker(message), str)
        assert all(str(piece) for piece in pieces(message))
    for policy in ("leave", "answer", "take_back"):
        repaired(conversation.copy(), policy)
    checkpoint = Checkpoint.new("agent", conversation, 1, created_at=FakeClock().now())
    assert is_same(Checkpoint.from_bytes(checkpoint.to_bytes()), checkpoint)
    difference(CHECKPOINT, checkpoint)


def _append(conversation: Conversation, wild: dict[str, Any]) -> None:
    before = len(conversation)
    try:
        conversation.append(wild)
    except (NotJson, ValueError):
        assert len(conversation) == before
    else:
        assert conversation.messages[-1].to_dict() == wild
