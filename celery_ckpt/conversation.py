"""A conversation: messages that are appended, sometimes replaced, and often copied into checkpoints.

A checkpoint takes a snapshot of the conversation, so a snapshot must not copy it. Conversations
therefore share a ``Spine``, a list that only grows, and each knows how much of it is its own:

    spine      m0 m1 m2 m3 m4
    snapshot   ------->|                (of a checkpoint: always three messages)
    live       ------------->|          (appends to the end of the spine)

A conversation that appends while another one owns more of the spine gets a branch: a new spine that
begins with its messages, and with what stores remember about them. The spine also keeps a running
digest and the size of its messages, so neither is computed again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from celery_ckpt.json_values import encode
from celery_ckpt.messages import Message, ToolCall

if TYPE_CHECKING:
    from hashlib import _Hash as HASH

DEFAULT_MAX_TOKENS = 100_000
_BYTES_PER_TOKEN = 4
#: How many JSON lines a spine keeps, so that a save does not encode and digest them again.
_RECENT = 64


class SpineCache(Protocol):
    """What a store remembers about the messages of a spine."""

    def first(self, length: int) -> Self:
        """Return what it remembers about the first ``length`` messages, for a branch of the spine."""
        ...


class Spine:
    """A list of messages that only grows, with a running digest of them as JSON lines."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages: list[Message] = []
        self._lock = threading.Lock()
        self._hasher = hashlib.sha256()
        self._size = 0
        #: The lines that were added last, each with the digest up to it: they are written next.
        self._recent: list[tuple[bytes, HASH, int]] = []
        #: What stores remember about these messages, each a ``SpineCache``. It lives as long as
        #: they do.
        self.caches: dict[Hashable, Any] = {}
        for message in messages:
            self._add(message, message.to_json())

    def extend_with_stored(self, lines: list[bytes], messages: list[Message]) -> None:
        """Append messages that were read from a store. The digest is that of the stored bytes."""
        data = b"\n".join([*lines, b""])
        with self._lock:
            self.messages += messages
            self._hasher.update(data)
            self._size += len(data)
            self._recent = []

    def try_append(self, message: Message, at: int) -> bool:
        """Append if the spine has exactly ``at`` messages. Return False if it has grown."""
        line = message.to_json()
        with self._lock:
            if len(self.messages) != at:
                return False
            self._add(message, line)
            return True

    def branch(self, length: int) -> Spine:
        """Return a new spine with the first ``length`` messages. They are neither copied nor, if they
        are recent, encoded again; and no store writes them again.
        """
        branch = Spine()
        with self._lock:
            behind = len(self.messages) - length
            branch.messages = self.messages[:length]
            branch.caches = {key: cache.first(length) for key, cache in [*self.caches.items()]}
            if not behind:
                branch._hasher, branch._size = self._hasher.copy(), self._size
                branch._recent = list(self._recent)
                return branch
            if behind < len(self._recent):
                branch._recent = self._recent[:-behind]
                _, then, branch._size = branch._recent[-1]
                branch._hasher = then.copy()
                return branch
        messages, branch.messages = branch.messages, []
        for message in messages:
            branch._add(message, message.to_json())
        return branch

    def _add(self, message: Message, line: bytes) -> None:
        self.messages.append(message)
        self._hasher.update(line + b"\n")
        self._size += len(line) + 1
        if len(self._recent) >= _RECENT:
            del self._recent[: _RECENT // 2]
        self._recent.append((line, self._hasher.copy(), self._size))

    def digest(self, length: int, more: bytes = b"") -> tuple[str, int]:
        """Return the SHA-256, in hex, of the first ``length`` messages, one JSON line each, and of
        ``more``; and the size of the lines.
        """
        with self._lock:
            behind = len(self.messages) - length
            if not behind:
                hasher, size = self._hasher.copy(), self._size
            elif behind < len(self._recent):
                _, then, size = self._recent[-1 - behind]
                hasher = then.copy()
            else:
                hasher = None
        if hasher is None:
            # Other conversations have grown the spine far beyond it.
            return Spine(self.messages[:length]).digest(length, more)
        hasher.update(more)
        return hasher.hexdigest(), size

    def lines(self, start: int, stop: int) -> list[bytes]:
        """Return messages ``start`` to ``stop - 1``, one JSON line each."""
        with self._lock:
            first = len(self.messages) - len(self._recent)
            if start >= first:
                return [recent[0] for recent in self._recent[start - first : stop - first]]
            return [message.to_json() for message in self.messages[start:stop]]


class Conversation:
    """Messages in order, compared by value. ``max_tokens`` is advice: nothing is ever trimmed."""

    #: Redacts a message that is appended; set by runs of an app with ``ckpt_redact``.
    redact: Callable[[Message], Message] | None = None

    def __init__(
        self,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        messages: Iterable[Message | dict[str, Any]] = (),
    ) -> None:
        if type(max_tokens) is not int or not 0 < max_tokens < 2**62:
            raise ValueError("max_tokens must be an integer from 1 to 2**62 - 1")
        self.max_tokens = max_tokens
        #: How often ``append`` and ``replace`` have changed it. Recorded calls use ``take``.
        self.edits = 0
        #: For writers. Readers need no lock: ``extent`` is replaced as a whole.
        self._lock = threading.Lock()
        #: Messages that were redacted when ``extend_to`` added them, by id, and what they were made of.
        self._originals: dict[int, tuple[Message, Message]] = {}
        #: The spine, and how many of its messages belong to this conversation.
        self.extent = _whole(messages)

    @classmethod
    def over(
        cls,
        spine: Spine,
        length: int,
        max_tokens: int,
        redact: Callable[[Message], Message] | None = None,
    ) -> Conversation:
        """Return a conversation of the first ``length`` messages of a spine, without copying them."""
        conversation = cls.__new__(cls)
        conversation.max_tokens, conversation.edits = max_tokens, 0
        conversation.redact = redact
        conversation._lock, conversation._originals = threading.Lock(), {}
        conversation.extent = spine, length
        return conversation

    def with_system_prompt(self, text: str) -> Conversation:
        """Return a new conversation that begins with this system message, in place of an old one."""
        old = self.messages
        rest = old[1:] if old and old[0].role == "system" else old
        return Conversation(self.max_tokens, [Message.system(text), *rest])

    def append(self, message: Message | dict[str, Any]) -> None:
        """Add a message at the end.

        Raises:
            NotJson: JSON cannot represent it exactly; the error names the path. Nothing was added.
        """
        message = Message.of(message)
        self.edits += 1
        self.take(message if self.redact is None else self.redact(message))

    def take(self, message: Message) -> None:
        """Add a message without redacting it: it was redacted when it was recorded."""
        with self._lock:
            spine, length = self.extent
            if not spine.try_append(message, length):
                spine = spine.branch(length)
                spine.try_append(message, length)
            self.extent = spine, length + 1

    def extend_to(self, messages: Iterable[Message | dict[str, Any]]) -> int:
        """Make the messages equal to these, which usually continue them; returns how many are new.

        The messages that both begin with stay, and the others are added after them. So a framework's
        whole history can be passed after each call: stores write only what is new. Pass the same
        ``Message`` objects again if you can: they need no comparison.

        Raises:
            NotJson: JSON cannot represent a message exactly. Nothing was changed.
        """
        given = list(messages)
        with self._lock:
            spine, length = self.extent
            shared = self._shared_with(given)
            new = [Message.of(message) for message in given[shared:]]
            if shared == length and not new:
                return 0
            kept = [self._redacted_once(message) for message in new]
            for at, message in enumerate(kept, shared):
                if not spine.try_append(message, at):
                    spine = spine.branch(at)
                    spine.try_append(message, at)
            self.extent = spine, len(given)
            self.edits += 1
            return len(new)

    def _shared_with(self, given: list[Message | dict[str, Any]]) -> int:
        """Return how many messages these and its own begin with in common."""
        own = self.messages
        pairs = enumerate(zip(own, given, strict=False))
        different = (at for at, (mine, other) in pairs if not self._is_same(mine, other))
        return next(different, min(len(own), len(given)))

    def _is_same(self, own: Message, given: Message | dict[str, Any]) -> bool:
        """True if both are the same JSON, or if the given one, redacted, is."""
        if own is given:
            return True
        known = self._originals.get(id(own))
        if known is not None:
            return known[1] is given or _is_same_json(known[1], given)
        if _is_same_json(own, given):
            return True
        if self.redact is None:
            return False
        original = Message.of(given)
        if not _is_same_json(own, self.redact(original)):
            return False
        self._originals[id(own)] = own, original
        return True

    def _redacted_once(self, message: Message) -> Message:
        """Redact a message that is new, and remember what it was made of: it will be given again."""
        kept = message if self.redact is None else self.redact(message)
        if kept is not message:
            self._originals[id(kept)] = kept, message
        return kept

    def become(self, other: Conversation, before: tuple[Spine, int]) -> bool:
        """Take over the messages of a changed copy. Return False if this one has changed, too.

        ``before`` is its ``extent`` when it was copied.
        """
        with self._lock:
            if self.extent != before:
                return False
            self.extent = other.extent
            return True

    def restore(self, extent: tuple[Spine, int], edits: int) -> None:
        """Return to what it was when it had this extent, and had been changed that often."""
        with self._lock:
            self.extent, self.edits = extent, edits

    def replace(self, messages: Iterable[Message | dict[str, Any]]) -> None:
        """Replace all messages, as a compaction does."""
        replaced = _whole(messages if self.redact is None else self._redacted(messages))
        with self._lock:
            self.extent = replaced
            self.edits += 1

    def _redacted(self, messages: Iterable[Message | dict[str, Any]]) -> Iterator[Message]:
        redact, known = self.redact or Message.of, {id(message) for message in self.messages}
        return (m if id(m := Message.of(each)) in known else redact(m) for each in messages)

    def copy(self) -> Conversation:
        """Return an independent conversation with the same messages, without copying them."""
        return Conversation.over(*self.extent, self.max_tokens, self.redact)

    @property
    def messages(self) -> list[Message]:
        """Return the messages in a new list."""
        spine, length = self.extent
        return spine.messages[:length]

    @property
    def spine(self) -> Spine:
        """Return the shared list. Stores remember with it what they have persisted."""
        return self.extent[0]

    @property
    def digest(self) -> str:
        """Return the SHA-256, in hex, of the messages, one JSON line each. It is a running digest."""
        spine, length = self.extent
        return spine.digest(length)[0]

    @property
    def size(self) -> int:
        """Return the size of the messages in bytes, one JSON line each."""
        spine, length = self.extent
        return spine.digest(length)[1]

    def estimated_tokens(self) -> int:
        """Estimate the tokens of the messages: a quarter of their bytes."""
        return -(-self.size // _BYTES_PER_TOKEN)

    def pending_tool_calls(self) -> list[ToolCall]:
        """Return the tool calls without a result. Providers accept no conversation that has any."""
        pending: dict[str, ToolCall] = {}
        for message in self.messages:
            for call_id in message.answers:
                pending.pop(call_id, None)
            pending.update({call.id: call for call in message.tool_calls})
        return list(pending.values())

    def __len__(self) -> int:
        return self.extent[1]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conversation):
            return NotImplemented
        (spine, length), (other_spine, other_length) = self.extent, other.extent
        if (self.max_tokens, length) != (other.max_tokens, other_length):
            return False
        return spine is other_spine or spine.messages[:length] == other_spine.messages[:length]

    __hash__ = None  # type: ignore[assignment]  # it can grow

    def __repr__(self) -> str:
        return f"Conversation({len(self)} messages, max_tokens={self.max_tokens})"

    def __reduce__(self) -> tuple[Any, ...]:
        # For copy.deepcopy, and for errors that carry checkpoints to another process.
        return Conversation, (self.max_tokens, self.messages)

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"max_tokens": ..., "messages": [...]}``, as plain JSON."""
        return {"max_tokens": self.max_tokens, "messages": [m.to_dict() for m in self.messages]}

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Let pydantic models have conversations as fields. A field holds a snapshot."""
        return core_schema.no_info_plain_validator_function(
            _snapshot,
            serialization=core_schema.plain_serializer_function_ser_schema(Conversation.to_dict),
        )


def _whole(messages: Iterable[Message | dict[str, Any]]) -> tuple[Spine, int]:
    spine = Spine(Message.of(m) for m in messages)
    return spine, len(spine.messages)


def _snapshot(value: Any) -> Conversation:
    if isinstance(value, Conversation):
        return Conversation.over(*value.extent, value.max_tokens, value.redact)
    if isinstance(value, Mapping) and value.keys() <= {"max_tokens", "messages"}:
        return Conversation(**value)
    raise ValueError("expected a Conversation, or an object with max_tokens and messages")


def _is_same_json(one: Message, other: Message | dict[str, Any]) -> bool:
    """True if both are written alike: to Python 1 is True, and keys have no order."""
    given = other.json_object if isinstance(other, Message) else other
    return one.json_object == given and one.to_json() == encode(given)
