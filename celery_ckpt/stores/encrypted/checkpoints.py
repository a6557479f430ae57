"""Checkpoints, encrypted and decrypted.

    messages   each encrypted by itself, bound to its agent
    state      with the entry's state and everything else that a resume needs, bound to this checkpoint:
               its agent, id, iteration, event, run, time, metadata, and the digest of all its encrypted
               messages in their order
    metadata   encrypted by itself, because a history shows it without messages; a pin stays readable,
               because sweeps need it

So no message can be omitted, exchanged or moved, within an agent or between two agents: the state of
the checkpoint could not be decrypted.

A conversation that grows is saved often. The encrypted messages of a spine are cached with it, as
stores cache there what they have written. So a save encrypts only the new messages, and the wrapped
store recognises all others.
"""

from __future__ import annotations

import threading
from typing import Any

from celery_ckpt.checkpoint import Checkpoint, Entry, header_of, shared_with_entry
from celery_ckpt.conversation import DEFAULT_MAX_TOKENS, Conversation, Spine
from celery_ckpt.errors import CheckpointDamaged, EncryptionKeyMissing, NotEncrypted
from celery_ckpt.json_values import decode, encode, microseconds
from celery_ckpt.messages import Message
from celery_ckpt.records import CheckpointInfo, MessagePage
from celery_ckpt.retention.report import PIN
from celery_ckpt.stores.encrypted.cipher import Altered, Cipher, UnknownKey, binding
from celery_ckpt.stores.encryption_tag import TAG, encrypted_text
from celery_ckpt.usage import Usage

#: The fields that are encrypted together with the state, with their values in the encrypted checkpoint.
_HIDDEN: dict[str, Any] = {
    "run_metadata": None,
    "after_loop": False,
    "usage": Usage(),
    "counted": None,
}
#: The fields of an entry that are encrypted together with the state.
_HIDDEN_OF_ENTRY = ("after_loop", "usage")


class EncryptedCheckpoints:
    """Encrypts and decrypts checkpoints."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    # -- encryption ----------------------------------------------------------------------------------

    def encrypt(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint that the wrapped store keeps."""
        own, agent_id = checkpoint.__dict__, checkpoint.agent_id
        entry: Entry | None = own["entry"]
        changes = {
            "conversation": self._encrypt_messages(agent_id, own["conversation"]),
            "metadata": self._encrypt_metadata(checkpoint),
            "entry": entry and Entry(conversation=self._encrypt_messages(agent_id, entry.conversation)),
            **_HIDDEN,
        }
        # Without validation, for speed: everything in it was validated before.
        encrypted = Checkpoint.model_construct(**{**own, **changes})
        states, hidden = [own["state"], entry and entry.__dict__["state"]], _hidden(checkpoint)
        content = encode([*states, hidden] if hidden else states)
        text = self._cipher.encrypt(agent_id, content, _binding(encrypted))
        encrypted.__dict__["state"] = {TAG: text}
        return encrypted

    def _encrypt_messages(self, agent_id: str, plain: Conversation) -> Conversation:
        spine, length = plain.extent
        cache: _EncryptedMessages = spine.caches.setdefault(
            (self, agent_id), _EncryptedMessages(Conversation())
        )
        encrypted = cache.extended(spine.messages[:length], self._cipher, agent_id)
        return Conversation.over(encrypted, length, plain.max_tokens)

    def _encrypt_metadata(self, checkpoint: Checkpoint) -> dict[str, str]:
        metadata: dict[str, str] = checkpoint.__dict__["metadata"]
        if not metadata:
            return {}
        place = binding("metadata", checkpoint.agent_id, checkpoint.id)
        text = self._cipher.encrypt(checkpoint.agent_id, encode(metadata), place)
        return {TAG: text, **{key: value for key, value in metadata.items() if key == PIN}}

    # -- decryption ----------------------------------------------------------------------------------

    def conversations(self, agent_id: str) -> DecryptedConversations:
        """Return what checkpoints of an agent share that are decrypted together."""
        return DecryptedConversations(self, self._cipher, agent_id)

    def decrypt(
        self, encrypted: Checkpoint, conversations: DecryptedConversations | None = None
    ) -> Checkpoint:
        """Return the checkpoint that was encrypted.

        Raises:
            CheckpointDamaged: it is not what was encrypted there.
            EncryptionKeyMissing, NotEncrypted: it is encrypted with another key, or not at all.
        """
        agent_id, own = encrypted.agent_id, encrypted.__dict__
        conversations = conversations or self.conversations(agent_id)
        with _Errors(agent_id, encrypted.id) as errors:
            text = encrypted_text(own["state"])
            if text is None:
                raise errors.not_encrypted("Checkpoint")
            content = self._cipher.decrypt(agent_id, text, _binding(encrypted))
            state, state_of_entry, *rest = decode(content)
            hidden = dict(rest[0]) if rest else {}
            hidden_of_entry = hidden.pop("entry", {})
            changes: dict[str, Any] = {
                **_HIDDEN,
                **hidden,
                "state": state,
                "conversation": conversations.decrypt(own["conversation"]),
                "metadata": self._decrypt_metadata(errors, own["metadata"]),
            }
            entry: Entry | None = own["entry"]
            if entry is not None:
                changes["entry"] = Entry(
                    conversation=conversations.decrypt(entry.conversation),
                    state=state_of_entry,
                    **hidden_of_entry,
                )
            return encrypted.model_copy(update=changes)

    def decrypt_info(self, agent_id: str, encrypted: CheckpointInfo) -> CheckpointInfo:
        """Return an outline with decrypted metadata. Raises what ``decrypt`` does."""
        with _Errors(agent_id, encrypted.id) as errors:
            metadata = self._decrypt_metadata(errors, encrypted.metadata)
            return encrypted.model_copy(update={"metadata": metadata})

    def decrypt_page(self, encrypted: MessagePage) -> MessagePage:
        """Return a page of decrypted messages. Raises what ``decrypt`` does.

        Each message is bound to its agent, but only ``decrypt`` notices if one is missing or moved.
        """
        with _Errors(encrypted.agent_id, encrypted.checkpoint_id):
            conversation = Conversation(messages=encrypted.messages)
            plain = self.conversations(encrypted.agent_id).decrypt(conversation)
            return encrypted._replace(messages=plain.messages)

    def _decrypt_metadata(self, errors: _Errors, encrypted: dict[str, str]) -> dict[str, str]:
        if not encrypted:
            return {}
        text = encrypted_text(encrypted)
        if text is None:
            raise errors.not_encrypted("The metadata of checkpoint")
        place = binding("metadata", errors.agent_id, errors.checkpoint_id)
        metadata: dict[str, str] = decode(self._cipher.decrypt(errors.agent_id, text, place))
        readable = {key: value for key, value in encrypted.items() if key != TAG}
        if readable != {key: value for key, value in metadata.items() if key == PIN}:
            raise Altered("its pin is not the one that was encrypted")
        return metadata


class _EncryptedMessages:
    """The encrypted messages of the beginning of a spine. They only grow."""

    def __init__(self, encrypted: Conversation) -> None:
        # A conversation, not a spine: two caches may begin with the same encrypted messages.
        self._encrypted = encrypted
        self._lock = threading.Lock()

    def first(self, length: int) -> _EncryptedMessages:
        """Return the first ``length`` of them, for a branch of the spine."""
        with self._lock:
            spine, known = self._encrypted.extent
            return _EncryptedMessages(Conversation.over(spine, min(length, known), DEFAULT_MAX_TOKENS))

    def extended(self, messages: list[Message], cipher: Cipher, agent_id: str) -> Spine:
        """Return a spine that begins with these messages, encrypted."""
        place = binding("message", agent_id)
        with self._lock:
            for message in messages[len(self._encrypted) :]:
                text = cipher.encrypt(agent_id, message.to_json(), place)
                self._encrypted.append(Message.decoded({TAG: text}))
            return self._encrypted.spine


class _PlainMessage(Exception):
    """A message is not encrypted."""


class DecryptedConversations:
    """Decrypts conversations of one agent, each message once, even if many checkpoints share it."""

    def __init__(self, checkpoints: EncryptedCheckpoints, cipher: Cipher, agent_id: str) -> None:
        self._checkpoints, self._cipher, self._agent_id = checkpoints, cipher, agent_id
        self._binding = binding("message", agent_id)
        #: Encrypted spines, and the plain ones made of them.
        self._spines: dict[int, tuple[Spine, Spine]] = {}

    def decrypt(self, encrypted: Conversation) -> Conversation:
        """Return the conversation that was encrypted."""
        spine, length = encrypted.extent
        _, plain = self._spines.setdefault(id(spine), (spine, Spine()))
        known = len(plain.messages)
        if known < length:
            lines = [self._line(message) for message in spine.messages[known:length]]
            plain.extend_with_stored(lines, [Message.decoded(_object(line)) for line in lines])
            # A later save finds them encrypted already.
            whole = Conversation.over(spine, length, DEFAULT_MAX_TOKENS)
            plain.caches[self._checkpoints, self._agent_id] = _EncryptedMessages(whole)
        return Conversation.over(plain, length, encrypted.max_tokens)

    def _line(self, message: Message) -> bytes:
        text = encrypted_text(message.json_object)
        if text is None:
            raise _PlainMessage
        return self._cipher.decrypt(self._agent_id, text, self._binding)


class _Errors:
    """Turns what can go wrong with one checkpoint into errors that name it."""

    def __init__(self, agent_id: str, checkpoint_id: str) -> None:
        self.agent_id, self.checkpoint_id = agent_id, checkpoint_id

    def not_encrypted(self, what: str) -> NotEncrypted:
        return NotEncrypted(what=f"{what} {self.checkpoint_id}", agent_id=self.agent_id)

    def __enter__(self) -> _Errors:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        names = {"agent_id": self.agent_id, "checkpoint_id": self.checkpoint_id}
        match error:
            case _PlainMessage():
                raise self.not_encrypted("A message of checkpoint") from None
            case UnknownKey(key_id=key_id):
                what = f"Checkpoint {self.checkpoint_id}"
                raise EncryptionKeyMissing(what=what, agent_id=self.agent_id, key_id=key_id) from None
            case Altered() | ValueError() | TypeError():
                raise CheckpointDamaged(**names, reason=str(error)[:200]) from error


def _object(line: bytes) -> dict[str, Any]:
    found = decode(line)
    if not isinstance(found, dict):
        raise Altered("one of its messages is not an object")
    return found


def _hidden(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what is encrypted together with the states, as the header has it."""
    kept, _ = shared_with_entry(checkpoint)
    header = header_of(checkpoint, kept)
    hidden = {name: header[name] for name in _HIDDEN if name in header}
    of_entry = header.get("entry", {})
    entry = {name: value for name, value in of_entry.items() if name in _HIDDEN_OF_ENTRY}
    return {**hidden, "entry": entry} if entry else hidden


def _binding(encrypted: Checkpoint) -> bytes:
    """Return the place of the state: everything else in the encrypted checkpoint."""
    own = encrypted.__dict__
    conversation, entry = own["conversation"], own["entry"]
    kept, rest = shared_with_entry(encrypted)
    of_entry = entry and [kept, _digest(Conversation(messages=rest)), entry.conversation.max_tokens]
    return binding(
        "checkpoint",
        encrypted.agent_id,
        encrypted.id,
        microseconds(own["created_at"]),
        own["iteration"],
        own["event"] and str(own["event"]),
        own["run_id"],
        own["metadata"],
        len(conversation),
        _digest(conversation),
        conversation.max_tokens,
        of_entry,
    )


def _digest(conversation: Conversation) -> str:
    spine, length = conversation.extent
    return spine.digest(length)[0] if length else ""
