"""How a checkpoint is written: a header, and the messages it needs, in one order.

    messages   conversation[0] ... conversation[n-1]  rest[0] ... rest[r-1]
    header     {"messages": n, "iteration": ..., ..., "entry": {"kept": k, "state": ...}}

The entry of a checkpoint is nearly always a prefix of its conversation. It is written as the number of
messages that both share (``kept``) and the rest, which exists only after a compaction inside an
iteration. Stores keep the header and the messages apart; ``to_bytes`` writes them as one JSON object.
Fields with their default value are omitted. Everything is data; nothing is imported by name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from celery_ckpt.clock import from_microseconds, microseconds
from celery_ckpt.conversation import DEFAULT_MAX_TOKENS, Conversation, Spine
from celery_ckpt.errors import NotACheckpoint, SchemaTooNew
from celery_ckpt.json_values import decode, encode
from celery_ckpt.messages import Message

if TYPE_CHECKING:
    from celery_ckpt.checkpoint import Checkpoint, Entry

    C = TypeVar("C", bound=Checkpoint)

#: The format of everything written here; see docs/reference/storage-format.md.
FORMAT_VERSION = 1


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Write a whole checkpoint as one JSON object."""
    kept, rest = shared_with_entry(checkpoint)
    return encode(
        {
            "format": FORMAT_VERSION,
            "id": checkpoint.id,
            "agent_id": checkpoint.agent_id,
            "header": header(checkpoint, kept),
            "messages": [m.json_object for m in (*checkpoint.conversation, *rest)],
        }
    )


def from_bytes(cls: type[C], data: bytes) -> C:
    """Read what ``to_bytes`` wrote."""
    try:
        found = decode(data)
        refuse_newer(found["format"], "This checkpoint")
        messages = [Message.of(m) for m in found["messages"]]
        spine = Spine(messages)
        return assemble(cls, found["agent_id"], found["id"], found["header"], spine)
    except (ValueError, KeyError, TypeError) as error:
        raise NotACheckpoint(reason=f"{type(error).__name__}: {str(error)[:200]}") from error


def is_same(one: Checkpoint, other: Checkpoint) -> bool:
    """True if two checkpoints are the same JSON. In JSON, 1 is not True, and keys have no order."""
    if one != other:
        return False
    first, second = (json.dumps(decode(to_bytes(each)), sort_keys=True) for each in (one, other))
    return first == second


def refuse_newer(version: object, what: str) -> None:
    """Raise ``SchemaTooNew`` for a format version that is newer than this code."""
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"{what} has format version {version!r}")
    if version > FORMAT_VERSION:
        raise SchemaTooNew(what=what, version=version, supported=FORMAT_VERSION)


def shared_with_entry(checkpoint: Checkpoint) -> tuple[int, list[Message]]:
    """Return how many messages the entry shares with the conversation, and its other messages."""
    entry: Entry | None = checkpoint.__dict__["entry"]
    if entry is None:
        return 0, []
    own, entered = checkpoint.conversation, entry.conversation
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


def header(checkpoint: Checkpoint, kept: int) -> dict[str, Any]:
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
    fields: dict[str, Any] = {"kept": kept, "state": entry.state}
    fields["max_tokens"] = entry.conversation.max_tokens
    fields["after_loop"], fields["usage"] = entry.after_loop, entry.usage.to_json()
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
