"""A checkpoint: an immutable, complete snapshot of an agent.

Every attribute that could be changed is returned as a copy (the copy of a conversation is free), so
that nothing can change a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)

from celery_ckpt import codec
from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import NotJson
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.json_values import plain
from celery_ckpt.names import checked_name, new_checkpoint_id
from celery_ckpt.usage import Usage


def named(what: str) -> BeforeValidator:
    """Return a validator for a name. It runs before pydantic's, which accepts bytes as text."""
    return BeforeValidator(lambda name: checked_name(name, what))


def kept_exactly(what: str) -> BeforeValidator:
    """Return a validator for a value that JSON must represent exactly. It runs before pydantic's.

    The context of a validation may name fields whose values are already plain copies.
    """

    def own(value: Any, info: ValidationInfo) -> Any:
        is_plain = info.context is not None and info.field_name in info.context
        return value if is_plain else plain(value, what)

    return BeforeValidator(own)


AgentId = Annotated[str, named("An agent_id")]
RunId = Annotated[str, named("A run_id")]
CheckpointId = Annotated[str, named("A checkpoint id")]
State = Annotated[dict[str, Any], kept_exactly("state")]
Metadata = Annotated[dict[str, str], kept_exactly("metadata")]
#: Counts fit into the 64 bits that every store and reader has.
Count = Annotated[int, Field(ge=0, lt=2**62)]
Timestamp = Annotated[AwareDatetime, AfterValidator(lambda time: time.astimezone(UTC))]


class _CopiedOut:
    """An attribute whose value is returned as a copy. Pydantic itself reads ``__dict__``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: BaseModel | None, owner: type[BaseModel]) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name]
        return value.copy() if isinstance(value, Conversation) else plain(value, "value")

    def __set__(self, instance: BaseModel, value: Any) -> None:
        raise AttributeError(f"{type(instance).__name__} is immutable. Make a new one.")


def hand_out_copies(model: type[BaseModel], *fields: str) -> None:
    """Return copies of these fields of a model, which are plain JSON values or conversations."""
    for field in fields:
        setattr(model, field, _CopiedOut(field))


class Value(BaseModel):
    """An immutable model. A changed copy is validated like a new one."""

    # The content of a message must not appear in a log because it is invalid.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed. Unlike pydantic's own, it validates them."""
        changes = update or {}
        unchanged = self.__dict__.keys() - changes.keys()
        return self.model_validate({**self.__dict__, **changes}, context=unchanged)


UsedSoFar = Annotated[
    Usage,
    PlainValidator(lambda value: value if isinstance(value, Usage) else Usage.from_json(value)),
    PlainSerializer(Usage.to_json),
]


class Entry(Value):
    """How an iteration began: the conversation and the state to enter it again with."""

    conversation: Conversation
    state: State = {}
    #: True if the code after the loop began here.
    after_loop: bool = False
    #: What the calls of the run had used up to here.
    usage: UsedSoFar = Usage()


class Checkpoint(Value):
    """An immutable, complete snapshot of an agent; compared by value."""

    id: CheckpointId
    agent_id: AgentId
    conversation: Conversation
    iteration: Count
    metadata: Metadata = {}
    created_at: Timestamp
    #: What the agent keeps besides its conversation: any JSON object.
    state: State = {}
    #: The event after which it was taken, if it was taken after one.
    event: CheckpointEvent | None = None
    #: The run that took it.
    run_id: RunId | None = None
    #: Set in a checkpoint taken inside an iteration: how that iteration began.
    entry: Entry | None = None
    #: The metadata that its run continues with; ``None``: ``metadata``, without a pin.
    run_metadata: Metadata | None = None
    #: True if the body had left its loop.
    after_loop: bool = False
    #: What the calls of the run have used up to this point of its body.
    usage: UsedSoFar = Usage()
    #: In an exact checkpoint, the key of the last step that ``usage`` includes.
    counted: str | None = None

    @classmethod
    def new(
        cls,
        agent_id: str,
        conversation: Conversation,
        iteration: int,
        *,
        clock: Clock = system_clock,
        **fields: Any,
    ) -> Self:
        """Return a checkpoint of a conversation, with a new id and the current time.

        Raises:
            NotJson: JSON cannot represent a part of its state or metadata exactly.
        """
        now = clock.now()
        new_id = new_checkpoint_id(checked_name(agent_id), now)
        try:
            return cls(
                id=new_id,
                agent_id=agent_id,
                conversation=conversation,
                iteration=iteration,
                created_at=now,
                **fields,
            )
        except ValidationError as error:
            raise _not_json(error) or error from None

    def with_metadata(self, key: str, value: str) -> Self:
        """Return the same checkpoint with one more entry in its metadata."""
        return self.model_copy(update={"metadata": {**self.metadata, key: value}})

    def to_bytes(self) -> bytes:
        """Return the whole checkpoint as JSON."""
        return codec.to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what ``to_bytes`` wrote.

        Raises:
            SchemaTooNew: a newer version of this library wrote it.
            NotACheckpoint: the bytes are something else.
        """
        return codec.from_bytes(cls, data)


def _not_json(error: ValidationError) -> NotJson | None:
    """Return the error for an invalid state or metadata that pydantic reports, or ``None``.

    A ``ValidationError`` does not survive Celery's result backends; a ``NotJson`` does.
    """
    first = error.errors(include_input=False, include_url=False)[0]
    place, cause = first["loc"], first.get("ctx", {}).get("error")
    if isinstance(cause, NotJson):
        return cause
    path, reason = ".".join(map(str, place)), f"is invalid ({first['msg'].lower()})"
    return NotJson(path=path, reason=reason) if place[0] in ("state", "metadata") else None


def is_alike(one: Checkpoint, other: Checkpoint) -> bool:
    """True if two checkpoints are equal, ignoring ``id`` and ``created_at``."""
    as_other = {"id": other.id, "created_at": other.created_at}
    return one.model_copy(update=as_other) == other


def is_as_good_as(one: Checkpoint, last: Checkpoint) -> bool:
    """True if a checkpoint has the conversation, state and metadata of the last one of its run."""
    mine, its = one.__dict__, last.__dict__
    (spine, length), (its_spine, its_length) = one.conversation.extent, last.conversation.extent
    if length != its_length or (spine is not its_spine and one.conversation != last.conversation):
        return False
    return all(mine[name] == its[name] for name in ("iteration", "state", "metadata", "usage"))


hand_out_copies(Entry, "conversation", "state")
hand_out_copies(Checkpoint, "conversation", "state", "metadata", "run_metadata")
