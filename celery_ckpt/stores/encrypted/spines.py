"""Messages and the sealed messages that stand for them, each sealed and opened once.

A conversation that grows is saved often. What stands for the messages of its spine is kept with the
spine, as stores keep there what they have persisted: so a save seals the new messages only, and the
store below finds that it knows all the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from celery_ckpt.conversation import DEFAULT_MAX_TOKENS, Conversation, Spine
from celery_ckpt.json_values import decode
from celery_ckpt.messages import Message
from celery_ckpt.stores.encrypted.cipher import Altered, Seals, bound
from celery_ckpt.stores.encryption_tag import TAG, encrypted_text


class PlainMessage(Exception):
    """A message that is not sealed."""


class _Twin:
    """The sealed messages that stand for the first ones of a spine. They only grow."""

    def __init__(self, sealed: Conversation) -> None:
        # A conversation, not a spine: two twins may have begun with the same sealed messages.
        self._sealed = sealed
        self._lock = threading.Lock()

    def grown(self, messages: list[Message], seal: Callable[[Message], Message]) -> Spine:
        """A spine that begins with what stands for these messages."""
        with self._lock:
            for message in messages[len(self._sealed) :]:
                self._sealed.append(seal(message))
            return self._sealed.spine


class EncryptedSpines:
    """Finds, or makes, what stands for the messages of conversations."""

    def __init__(self, seals: Seals) -> None:
        self._seals = seals

    def sealed(self, agent_id: str, plain: Conversation) -> Conversation:
        """The sealed conversation that stands for one."""
        spine, length = plain.extent
        twin: _Twin = spine.policy.setdefault((self, agent_id), _Twin(Conversation()))
        as_what = bound("message", agent_id)

        def seal(message: Message) -> Message:
            text = self._seals.seal(agent_id, message.to_json(), as_what)
            return Message.decoded({TAG: text})

        grown = twin.grown(spine.messages[:length], seal)
        return Conversation.over(grown, length, plain.max_tokens)

    def note(self, agent_id: str, plain: Spine, sealed: Spine) -> None:
        """What stands for all of these messages is known."""
        known = Conversation.over(sealed, len(plain.messages), DEFAULT_MAX_TOKENS)
        plain.policy[self, agent_id] = _Twin(known)


class OpenedSpines:
    """Opens the conversations of one agent, each message once, however many checkpoints share it."""

    def __init__(self, seals: Seals, sealed: EncryptedSpines, agent_id: str) -> None:
        self._seals, self._sealed, self._agent_id = seals, sealed, agent_id
        self._bound = bound("message", agent_id)
        #: The sealed spines that were met, and the plain ones made of them.
        self._opened: dict[int, tuple[Spine, Spine]] = {}

    def opened(self, sealed: Conversation) -> Conversation:
        """The conversation that a sealed one stands for.

        Raises:
            PlainMessage: one of its messages is not sealed.
            Altered, UnknownKey: one of them cannot be opened.
        """
        spine, length = sealed.extent
        _, plain = self._opened.setdefault(id(spine), (spine, Spine()))
        known = len(plain.messages)
        if known < length:
            lines = [self._line(message) for message in spine.messages[known:length]]
            plain.extend_with_stored(lines, [Message.decoded(_object(line)) for line in lines])
            self._sealed.note(self._agent_id, plain, spine)
        return Conversation.over(plain, length, sealed.max_tokens)

    def _line(self, message: Message) -> bytes:
        text = encrypted_text(message.json_object)
        if text is None:
            raise PlainMessage
        return self._seals.open(self._agent_id, text, self._bound)


def _object(line: bytes) -> dict[str, Any]:
    found = decode(line)
    if not isinstance(found, dict):
        raise Altered("one of its messages is not an object")
    return found
