"""Whatever lies in a store or comes over a wire: a value or an error of ours, never anything else.

``CKPT_FUZZ_EXAMPLES=200000`` looks for longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mangling import mangled, mangled_bytes

from celery_ckpt import Checkpoint, CheckpointEvent, Conversation, Message
from celery_ckpt.codec import is_same
from celery_ckpt.errors import CheckpointError, NotACheckpoint
from celery_ckpt.models import Entry
from celery_ckpt.records import RunRecord, RunStatus, Step
from celery_ckpt.stores.limits import decoded_run, decoded_step, encoded
from celery_ckpt.stores.log.drafts import Basis, Parts
from celery_ckpt.stores.log.reading import Reading
from celery_ckpt.stores.log.record import Record, stamp
from celery_ckpt.testing import FakeClock

fuzzed = settings(
    max_examples=int(os.environ.get("CKPT_FUZZ_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
NOW = FakeClock().now()
LIMIT = 1 << 26


def _checkpoint() -> Checkpoint:
    conversation = Conversation(messages=[Message.system("be brief"), Message.user("hello")])
    before = Entry(conversation=conversation.copy(), state={"turn": 0})
    conversation.append({"role": "assistant", "content": [{"type": "text", "text": "hi"}]})
    return Checkpoint.new(
        "agent", conversation, 3, clock=FakeClock(), run_id="run", event=CheckpointEvent.ITERATION,
        state={"sum": [1, 2.5, None]}, metadata={"a": "b"}, entry=before,
    )  # fmt: skip


CHECKPOINT = _checkpoint()
WHOLE = CHECKPOINT.to_bytes()
DRAFT = Parts(CHECKPOINT).draft_of_all(Basis.EMPTY)
LINE = stamp(1, 7, 0, DRAFT.rest)
STEP = Step(agent_id="agent", run_id="run", key="1:k", name="k", iteration=1, value={"a": [1]})
RUN = RunRecord(
    agent_id="agent", run_id="run", task="t", status=RunStatus.SUCCEEDED, result=[1], created_at=NOW,
    envelope={"headers": {"id": "run"}, "text": "[]"},
)  # fmt: skip


@fuzzed
@given(mangled(WHOLE))
def test_bytes_are_a_checkpoint_or_refused_as_none(data: bytes) -> None:
    try:
        checkpoint = Checkpoint.from_bytes(data)
    except CheckpointError as error:
        assert isinstance(error, NotACheckpoint) or "version" in str(error)  # noqa: PT017
    else:
        assert is_same(Checkpoint.from_bytes(checkpoint.to_bytes()), checkpoint)


@fuzzed
@given(mangled_bytes(LINE), st.lists(mangled(DRAFT.messages[0]), max_size=4))
def test_a_record_and_its_messages_are_the_checkpoint_or_damaged(
    line: bytes, forged: list[bytes]
) -> None:
    messages = dict(enumerate([*forged, *DRAFT.messages]))
    try:
        found = Reading().checkpoint(Record.parse("agent", CHECKPOINT.id, line), messages)
    except CheckpointError as error:
        assert "agent" in str(error)  # noqa: PT017
    else:
        # The digest is of the content: nothing else can pass for it.
        assert is_same(found, CHECKPOINT)


@pytest.mark.parametrize(
    ("decoded", "valid"),
    [(decoded_step, encoded(STEP, LIMIT)), (decoded_run, encoded(RUN, LIMIT))],
    ids=["step", "run"],
)
@fuzzed
@given(data=st.data())
def test_a_step_or_a_run_is_read_or_named_as_damaged(
    decoded: Callable[..., Any], valid: bytes, data: Any
) -> None:
    stored = data.draw(mangled(valid))
    try:
        found = decoded("agent", "run", stored)
    except CheckpointError as error:
        assert "run" in str(error)  # noqa: PT017
    else:
        assert decoded("agent", "run", encoded(found, LIMIT)) == found
