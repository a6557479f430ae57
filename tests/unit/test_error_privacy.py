"""An error about the data of a user names the place, and does not contain the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from celery_ckpt import Checkpoint, Conversation, Message, ToolCall
from celery_ckpt.errors import CheckpointError
from celery_ckpt.run.step_result import dumped
from celery_ckpt.stores.encoding import decoded_run, decoded_step
from celery_ckpt.stores.log.record import Record
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing import make_checkpoint, make_message, make_step

SECRET = "swordfish"


class Answer(BaseModel):
    number: int


MISTAKES: dict[str, Callable[[], Any]] = {
    "a message that is not a message": lambda: Message.model_validate(SECRET),
    "a message with bytes": lambda: Message.user(SECRET.encode()),
    "a message with a set": lambda: Conversation().append({"content": {SECRET}}),
    "a message with a surrogate": lambda: Message.user(f"{SECRET}\ud800"),
    "a state that is not an object": lambda: make_checkpoint("a", state=SECRET),
    "metadata that is not an object": lambda: make_checkpoint("a", metadata={"k": {"x": SECRET}}),
    "a conversation that is not one": lambda: Checkpoint.new("a", SECRET, 1),  # type: ignore[arg-type]
    "an unknown field": lambda: make_checkpoint("a", whatever=SECRET),
    "a step with bytes": lambda: make_step("a", "r", "k", value=SECRET.encode()),
    "arguments that are not JSON": lambda: ToolCall(id="c", name="n", input=f"{{{SECRET}").arguments,
    "a call that is not one": lambda: ToolCall(id=[SECRET], name="n"),  # type: ignore[arg-type]
    "a result that does not fit": lambda: dumped({"number": SECRET}, Answer, "step"),
    "a result with bytes": lambda: dumped([SECRET.encode()], None, "step"),
    "a stored step that is damaged": lambda: decoded_step("a", "r", f'{{"x": "{SECRET}"}}'.encode()),
    "a stored run that is damaged": lambda: decoded_run("a", "r", f'["{SECRET}"'.encode()),
    "a stored record without version": lambda: Record.parse("a", "c", f'"{SECRET}" 1 0'.encode()),
    "a stored record without number": lambda: Record.parse(
        "a", "c", f"1 {SECRET} 0 - - d {{}}".encode()
    ),
    "a stored record without base": lambda: Record.parse("a", "c", f"1 1 {SECRET} - - d {{}}".encode()),
    "a stored record without ranges": lambda: Record.parse(
        "a", "c", f"1 1 0 - {SECRET} d {{}}".encode()
    ),
    "bytes that are not a checkpoint": lambda: Checkpoint.from_bytes(f'{{"format": "{SECRET}'.encode()),
    "a checkpoint that is too large": lambda: MemoryCheckpointStore(max_checkpoint_bytes=9).save(
        make_checkpoint("a", Conversation(messages=[make_message(SECRET)]), state={"s": SECRET})
    ),
    "a step that is too large": lambda: MemoryCheckpointStore(max_checkpoint_bytes=9).record_step(
        make_step("a", "r", "k", value=SECRET)
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_an_error_does_not_repeat_the_secret(what: str) -> None:
    with pytest.raises((ValueError, CheckpointError)) as mistake:
        MISTAKES[what]()
    error: BaseException | None = mistake.value
    while error is not None:
        assert SECRET not in str(error), repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_the_repr_of_a_conversation_does_not_show_its_messages() -> None:
    conversation = Conversation(messages=[make_message(SECRET)])
    assert SECRET not in repr(conversation)
