"""A checkpoint and the sealed one that stands for it.

    messages   each sealed by itself, for its agent
    state      with the entry's state, and whatever else a resume goes by, sealed as that of this very
               checkpoint: its agent, id, iteration, event, run, time, metadata, and the digest of all
               its sealed messages in their order
    metadata   sealed by itself, since a history shows it without messages; a pin stays readable, for
               sweeps go by it

So no message can be left out, exchanged, or put elsewhere, in one agent or between two: the state of
the checkpoint would not open.
"""

from __future__ import annotations

from typing import Any

from celery_ckpt import codec
from celery_ckpt.checkpoint import Checkpoint, Entry
from celery_ckpt.clock import microseconds
from celery_ckpt.conversation import Conversation, Spine
from celery_ckpt.errors import CheckpointDamaged, EncryptionKeyMissing, NotEncrypted
from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import CheckpointInfo
from celery_ckpt.retention.report import PIN
from celery_ckpt.stores.encrypted.cipher import (
    Altered,
    Seals,
    UnknownKey,
    bound,
)
from celery_ckpt.stores.encrypted.spines import EncryptedSpines, OpenedSpines, PlainMessage
from celery_ckpt.stores.encryption_tag import TAG, encrypted_text
from celery_ckpt.usage import Usage

#: The fields of a checkpoint that are sealed with its state, as they stand in the sealed one.
_WITHHELD: dict[str, Any] = {
    "run_metadata": None,
    "after_loop": False,
    "usage": Usage(),
    "counted": None,
}
#: The fields of an entry that are sealed so.
_OF_ENTRY = ("after_loop", "usage")


class EncryptedCheckpoints:
    """Seals and opens checkpoints."""

    def __init__(self, seals: Seals) -> None:
        self._seals, self._spines = seals, EncryptedSpines(seals)

    # -- sealing -------------------------------------------------------------------------------------

    def sealed(self, checkpoint: Checkpoint) -> Checkpoint:
        """What stands for a checkpoint in the store below."""
        own, agent_id = checkpoint.__dict__, checkpoint.agent_id
        entry: Entry | None = own["entry"]
        changes = {
            "conversation": self._spines.sealed(agent_id, own["conversation"]),
            "metadata": self._sealed_metadata(checkpoint),
            "entry": entry and Entry(conversation=self._spines.sealed(agent_id, entry.conversation)),
            **_WITHHELD,
        }
        # Every save comes here, and there is nothing in it that has not been looked at before.
        sealed = Checkpoint.model_construct(**{**own, **changes})
        states, more = [own["state"], entry and entry.__dict__["state"]], _more(checkpoint)
        content = encode([*states, more] if more else states)
        sealed.__dict__["state"] = {TAG: self._seals.seal(agent_id, content, _bound(sealed))}
        return sealed

    def _sealed_metadata(self, checkpoint: Checkpoint) -> dict[str, str]:
        metadata: dict[str, str] = checkpoint.__dict__["metadata"]
        if not metadata:
            return {}
        as_what = _bound_metadata(checkpoint.agent_id, checkpoint.id)
        text = self._seals.seal(checkpoint.agent_id, encode(metadata), as_what)
        return {TAG: text, **{key: value for key, value in metadata.items() if key == PIN}}

    # -- opening -------------------------------------------------------------------------------------

    def opening(self, agent_id: str) -> OpenedSpines:
        """What checkpoints of an agent share that are opened together."""
        return OpenedSpines(self._seals, self._spines, agent_id)

    def opened(self, sealed: Checkpoint, spines: OpenedSpines | None = None) -> Checkpoint:
        """The checkpoint that a sealed one stands for.

        Raises:
            CheckpointDamaged: it is not what was sealed there.
            EncryptionKeyMissing, NotEncrypted: see there.
        """
        named = _Named(sealed.agent_id, sealed.id)
        try:
            return self._opened(sealed, spines or self.opening(sealed.agent_id))
        except PlainMessage:
            raise named.plain("A message of checkpoint") from None
        except UnknownKey as unknown:
            raise named.locked(unknown.key_id) from None
        except (Altered, ValueError, TypeError) as error:
            raise named.damaged(str(error)) from error

    def _opened(self, sealed: Checkpoint, spines: OpenedSpines) -> Checkpoint:
        agent_id, own = sealed.agent_id, sealed.__dict__
        entry: Entry | None = own["entry"]
        text = encrypted_text(own["state"])
        if text is None:
            raise _Named(agent_id, sealed.id).plain("Checkpoint")
        state, entered, *rest = decode(self._seals.open(agent_id, text, _bound(sealed)))
        more = dict(rest[0]) if rest else {}
        of_entry = more.pop("entry", {})
        changes: dict[str, Any] = {
            **_WITHHELD,
            **more,
            "state": state,
            "conversation": spines.opened(own["conversation"]),
            "metadata": self._opened_metadata(agent_id, sealed.id, own["metadata"]),
        }
        if entry is not None:
            conversation = spines.opened(entry.conversation)
            changes["entry"] = Entry(conversation=conversation, state=entered, **of_entry)
        return sealed.model_copy(update=changes)

    def info(self, agent_id: str, sealed: CheckpointInfo) -> CheckpointInfo:
        """The outline that a sealed one stands for. Raises what ``opened`` does."""
        named = _Named(agent_id, sealed.id)
        try:
            metadata = self._opened_metadata(agent_id, sealed.id, sealed.metadata)
        except UnknownKey as unknown:
            raise named.locked(unknown.key_id) from None
        except (Altered, ValueError, TypeError) as error:
            raise named.damaged(str(error)) from error
        return sealed.model_copy(update={"metadata": metadata})

    def _opened_metadata(
        self, agent_id: str, checkpoint_id: str, sealed: dict[str, str]
    ) -> dict[str, str]:
        if not sealed:
            return {}
        text = encrypted_text(sealed)
        if text is None:
            raise _Named(agent_id, checkpoint_id).plain("The metadata of checkpoint")
        as_what = _bound_metadata(agent_id, checkpoint_id)
        metadata: dict[str, str] = decode(self._seals.open(agent_id, text, as_what))
        readable = {key: value for key, value in sealed.items() if key != TAG}
        if readable != {key: value for key, value in metadata.items() if key == PIN}:
            raise Altered("its pin is not the one that was sealed")
        return metadata


class _Named:
    """The errors about one checkpoint."""

    def __init__(self, agent_id: str, checkpoint_id: str) -> None:
        self._agent_id, self._id = agent_id, checkpoint_id

    def plain(self, what: str) -> NotEncrypted:
        return NotEncrypted(what=f"{what} {self._id}", agent_id=self._agent_id)

    def locked(self, key_id: str) -> EncryptionKeyMissing:
        what = f"Checkpoint {self._id}"
        return EncryptionKeyMissing(what=what, agent_id=self._agent_id, key_id=key_id)

    def damaged(self, reason: str) -> CheckpointDamaged:
        return CheckpointDamaged(
            agent_id=self._agent_id, checkpoint_id=self._id, reason=f"{reason[:200]}"
        )


def _more(checkpoint: Checkpoint) -> dict[str, Any]:
    """What is sealed besides the states, as the header has it."""
    kept, _ = codec.shared_with_entry(checkpoint)
    header = codec.header(checkpoint, kept)
    more = {name: header[name] for name in _WITHHELD if name in header}
    entry = {name: value for name, value in header.get("entry", {}).items() if name in _OF_ENTRY}
    return {**more, "entry": entry} if entry else more


def _bound(sealed: Checkpoint) -> bytes:
    """Everything about a sealed checkpoint but its state."""
    own = sealed.__dict__
    conversation, entry = own["conversation"], own["entry"]
    kept, rest = codec.shared_with_entry(sealed)
    entered = entry and [kept, _digest(Conversation(messages=rest)), entry.conversation.max_tokens]
    return bound(
        "checkpoint",
        sealed.agent_id,
        sealed.id,
        microseconds(own["created_at"]),
        own["iteration"],
        own["event"] and str(own["event"]),
        own["run_id"],
        own["metadata"],
        len(conversation),
        _digest(conversation),
        conversation.max_tokens,
        entered,
    )


def _digest(conversation: Conversation) -> str:
    spine: Spine
    spine, length = conversation.extent
    return spine.digest(length)[0] if length else ""


def _bound_metadata(agent_id: str, checkpoint_id: str) -> bytes:
    return bound("metadata", agent_id, checkpoint_id)
