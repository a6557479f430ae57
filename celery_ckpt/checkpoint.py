"""A checkpoint: an immutable, complete snapshot of an agent, and how it is written.

Every attribute that could be changed is returned as a copy (the copy of a conversation is free), so
that nothing can change a checkpoint.

A checkpoint is written as a header and the messages it needs, in one order:

    messages   conversation[0] ... conversation[n-1]  rest[0] ... rest[r-1]
    header     {"messages": n, "iteration": ..., ..., "entry": {"kept": k, "state": ...}}

The entry of a checkpoint is nearly always a prefix of its conversation. It is written as the number of
messages that both share (``kept``) and the rest, which exists only after a compaction inside an
iteration. Stores keep the header and the messages apart; ``to_bytes`` writes them as one JSON object.
Fields with their default value are omitted. Everything is data; nothing is imported by name.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import core_schema

from celery_ckpt.conversation import DEFAULT_MAX_TOKENS, Conversation, Spine
from celery_ckpt.errors import NotACheckpoint, NotJson
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.format_version import FORMAT_VERSION, refuse_newer
from celery_ckpt.json_values import decode, encode, from_microseconds, microseconds, plain
from celery_ckpt.messages import Message
from celery_ckpt.names import MAX_NAME_LENGTH, locator
from celery_ckpt.usage import Usage


def named(what: str) -> GetPydanticSchema:
    """Return a validator for a name. It accepts what ``checked_name`` accepts, and runs in pydantic."""
    text = core_schema.str_schema(strict=True, min_length=1, max_length=MAX_NAME_LENGTH)
    wanted = f"{what} must be text of 1 to {MAX_NAME_LENGTH} characters, without lone surrogates"
    checked = core_schema.custom_error_schema(text, "name", custom_error_message=wanted)
    return GetPydanticSchema(lambda *_: checked)


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
    #: In an exact checkpoint, the key of the last step with a usage or a hook that it includes.
    counted: str | None = None

    @classmethod
    def new(
        cls,
        agent_id: str,
        conversation: Conversation,
        iteration: int,
        *,
        created_at: datetime | None = None,
        **fields: Any,
    ) -> Self:
        """Return a checkpoint of a conversation, with a new id; by default of the current time.

        The id is the agent's locator, then the time and random bits. Ids of an agent sort by time.

        Raises:
            InvalidName: the agent's name cannot be stored.
            NotJson: JSON cannot represent a part of its state or metadata exactly.
        """
        now = created_at or datetime.now(UTC)
        milliseconds, rest = divmod(microseconds(now), 1000)
        time = milliseconds.to_bytes(6, "big") + rest.to_bytes(2, "big")
        # In the extended-hex alphabet of base 32, characters sort like the values that they encode.
        unique = base64.b32hexencode(time + secrets.token_bytes(7)).decode().lower()
        try:
            return cls(
                id=f"{locator(agent_id)}-{unique}",
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
        """Return the whole checkpoint as one JSON object."""
        kept, rest = shared_with_entry(self)
        return encode(
            {
                "format": FORMAT_VERSION,
                "id": self.id,
                "agent_id": self.agent_id,
                "header": header_of(self, kept),
                "messages": [m.json_object for m in (*self.conversation, *rest)],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what ``to_bytes`` wrote.

        Raises:
            SchemaTooNew: a newer version of this library wrote it.
            NotACheckpoint: the bytes are something else.
        """
        try:
            found = decode(data)
            refuse_newer(found["format"], "This checkpoint")
            messages = Spine(Message.of(m) for m in found["messages"])
            return assemble(cls, found["agent_id"], found["id"], found["header"], messages)
        except (ValueError, KeyError, TypeError) as error:
            raise NotACheckpoint(reason=f"{type(error).__name__}: {str(error)[:200]}") from error


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
    (spine, length), (its_spine, its_length) = mine["conversation"].extent, its["conversation"].extent
    if length != its_length or (spine is not its_spine and one.conversation != last.conversation):
        return False
    return all(mine[name] == its[name] for name in ("iteration", "state", "metadata", "usage"))


def is_same(one: Checkpoint, other: Checkpoint) -> bool:
    """True if two checkpoints are the same JSON. In JSON, 1 is not True, and keys have no order."""
    if one != other:
        return False
    first, second = (json.dumps(decode(each.to_bytes()), sort_keys=True) for each in (one, other))
    return first == second


hand_out_copies(Entry, "conversation", "state")
hand_out_copies(Checkpoint, "conversation", "state", "metadata", "run_metadata")

# -- header and messages ---------------------------------------------------------------------------

C = TypeVar("C", bound=Checkpoint)


def shared_with_entry(checkpoint: Checkpoint) -> tuple[int, list[Message]]:
    """Return how many messages the entry shares with the conversation, and its other messages."""
    entry: Entry | None = checkpoint.__dict__["entry"]
    if entry is None:
        return 0, []
    own: Conversation = checkpoint.__dict__["conversation"]
    entered: Conversation = entry.__dict__["conversation"]
    if own.spine is entered.spine and len(entered) <= len(own):
        return len(entered), []
    before, now = entered.messages, own.messages
    pairs = zip(before, now, strict=False)
    # Equality is not enough (1 == True, and keys have an order): shared messages are written once.
    differ = (
        i for i, (old, new) in enumerate(pairs) if old is not new and old.to_json() != new.to_json()
    )
    kept = next(differ, min(len(before), len(now)))
    return kept, before[kept:]


def header_of(checkpoint: Checkpoint, kept: int) -> dict[str, Any]:
    """Return everything of a checkpoint except its messages, its id and its agent."""
    # The values of the model itself, not the copies that it returns: they are only read here.
    own = checkpoint.__dict__
    conversation: Conversation = own["conversation"]
    fields = {
        "created_at": microseconds(own["created_at"]),
        "messages": conversation.extent[1],
        "iteration": own["iteration"],
    }
    if own["event"]:
        fields["event"] = str(own["event"])
    if own["run_id"]:
        fields["run_id"] = own["run_id"]
    if own["metadata"]:
        fields["metadata"] = own["metadata"]
    if own["run_metadata"] is not None:
        fields["run_metadata"] = own["run_metadata"]
    if own["state"]:
        fields["state"] = own["state"]
    if conversation.max_tokens != DEFAULT_MAX_TOKENS:
        fields["max_tokens"] = conversation.max_tokens
    if own["after_loop"]:
        fields["after_loop"] = True
    if own["usage"].by_model:
        fields["usage"] = own["usage"].to_json()
    if own["counted"] is not None:
        fields["counted"] = own["counted"]
    if own["entry"] is not None:
        fields["entry"] = _entry_header(own["entry"], kept)
    return fields


def _entry_header(entry: Entry, kept: int) -> dict[str, Any]:
    own = entry.__dict__
    fields: dict[str, Any] = {"kept": kept, "state": own["state"]}
    fields["max_tokens"] = own["conversation"].max_tokens
    fields["after_loop"], fields["usage"] = own["after_loop"], own["usage"].to_json()
    defaults = {"state": {}, "max_tokens": DEFAULT_MAX_TOKENS, "after_loop": False, "usage": {}}
    return {name: value for name, value in fields.items() if defaults.get(name) != value}


def assemble(
    cls: type[C], agent_id: str, checkpoint_id: str, header: dict[str, Any], spine: Spine
) -> C:
    """Return the checkpoint with this header and these messages.

    Raises:
        ValueError, KeyError, TypeError: the header does not fit the messages.
    """
    fields = dict(header)
    count, entry = fields.pop("messages"), fields.pop("entry", None)
    if not isinstance(count, int) or not 0 <= count <= len(spine.messages):
        raise ValueError(f"it has {len(spine.messages)} messages instead of {count}")
    if entry is None and count != len(spine.messages):
        raise ValueError(f"it has {len(spine.messages) - count} messages too many")
    own = spine if count == len(spine.messages) else Spine(spine.messages[:count])
    conversation = _over(own, count, fields)
    if entry is not None:
        fields["entry"] = _entry(spine, conversation, dict(entry))
    fields["created_at"] = from_microseconds(fields["created_at"])
    return cls(id=checkpoint_id, agent_id=agent_id, conversation=conversation, **fields)


def _over(spine: Spine, count: int, fields: dict[str, Any]) -> Conversation:
    return Conversation.over(spine, count, fields.pop("max_tokens", DEFAULT_MAX_TOKENS))


def _entry(spine: Spine, conversation: Conversation, fields: dict[str, Any]) -> dict[str, Any]:
    kept = fields.pop("kept")
    if not isinstance(kept, int) or not 0 <= kept <= len(conversation):
        raise ValueError(f"its entry shares {kept} of {len(conversation)} messages")
    rest = spine.messages[len(conversation) :]
    own = Spine([*spine.messages[:kept], *rest]) if rest else conversation.spine
    return {"conversation": _over(own, kept + len(rest), fields), **fields}
