"""What a save has to write: only what the agent's log does not hold yet.

A save refers to messages that earlier saves have written. That is safe only while something keeps
those messages in the log, so every save names a **basis**: a stored checkpoint that refers to all of
them. The store accepts it only if the basis is still there at that moment, in the same atomic step,
with the same **mark**: its base, its ranges and its digest. Nothing else needs checking: whatever
happened meanwhile (the history was pruned, the agent deleted and made anew, a replica promoted that had
missed the last saves), if the basis is there, so are its messages, at the offsets it says.

The writer remembers, for each spine, its latest basis; so the usual save costs the new messages. If it
remembers none, or the basis is gone, it reads the agent's latest checkpoint and looks up each message
in it: what is found there is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import count
from typing import NamedTuple

from celery_ckpt import codec
from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import Conversation, Spine
from celery_ckpt.errors import CheckpointTooLarge
from celery_ckpt.json_values import encode
from celery_ckpt.stores.log.ranges import Ranges, freshen
from celery_ckpt.stores.log.record import DIGEST_LENGTH, Record


class Basis(Enum):
    """What a save may rest on, if not on a certain checkpoint."""

    #: The agent has no checkpoint at all, and must still have none.
    EMPTY = ""
    #: The save brings all its messages along and does not care.
    ANY = "*"


class Draft(NamedTuple):
    """A save, ready to be written: its place in the log is all that is missing."""

    basis: str | Basis
    #: What the basis must say of itself: base, low, ranges and digest.
    mark: str
    #: Where the log ended with the basis: the base of this save, if nobody came between.
    end: int
    #: The messages to append to the log, one JSON line each.
    messages: list[bytes]
    #: All messages of the checkpoint; the new ones relative to the base.
    ranges: Ranges
    #: Low, ranges and digest, as the record has them before the header.
    place: str
    header: bytes

    @property
    def rest(self) -> bytes:
        """The record without its stamp."""
        return f"{self.place} ".encode() + self.header


class Place(NamedTuple):
    """Where the first messages of a spine lie, as long as the basis is there."""

    basis: str
    mark: str
    #: Where the log ended with the basis.
    end: int
    ranges: Ranges


class Parts:
    """A checkpoint taken apart into what is written: its messages in order, and its header."""

    __slots__ = ("conversation", "digest", "entered", "header", "kept", "rest", "size")

    def __init__(self, checkpoint: Checkpoint) -> None:
        fields = checkpoint.__dict__
        self.conversation: Conversation = fields["conversation"]
        self.entered: Conversation | None = None
        self.kept, self.rest = codec.shared_with_entry(checkpoint)
        spine, count = self.conversation.extent
        if self.rest:
            self.entered = fields["entry"].conversation
            spine, count = Spine([*self.conversation, *self.rest]), count + len(self.rest)
        self.header = encode(codec.header(checkpoint, self.kept))
        sha256, size = spine.digest(count, self.header)
        self.digest, self.size = sha256[:DIGEST_LENGTH], size + len(self.header)

    def refuse_too_large(self, checkpoint: Checkpoint, limit: int) -> None:
        """Raise ``CheckpointTooLarge``, naming the largest part, before anything is written."""
        if self.size <= limit:
            return
        sizes = {
            f"message {number} (role {message.role})": len(message.to_json())
            for number, message in enumerate([*self.conversation, *self.rest])
        }
        sizes["its header with state and metadata"] = len(self.header)
        part = max(sizes, key=lambda name: sizes[name])
        raise CheckpointTooLarge(
            what=f"Checkpoint {checkpoint.id}",
            agent_id=checkpoint.agent_id,
            size=self.size,
            limit=limit,
            part=part,
            part_size=sizes[part],
        )

    def draft(
        self, basis: str | Basis, mark: str, end: int, ranges: Ranges, messages: list[bytes]
    ) -> Draft:
        """Put the pieces together."""
        place = f"{ranges.place} {self.digest}"
        return Draft(basis, mark, end, messages, ranges, place, self.header)

    def draft_of_all(self, basis: Basis) -> Draft:
        """Write every message."""
        lines = self._all_lines()
        return self.draft(basis, "", 0, Ranges.all_new(len(lines)), lines)

    def _all_lines(self) -> list[bytes]:
        own = self.conversation.spine.lines(0, len(self.conversation))
        return [*own, *(message.to_json() for message in self.rest)]

    def draft_by_memory(self, memory: Memory, agent_id: str) -> Draft | None:
        """Write what came after the remembered places; ``None`` if they are not remembered."""
        place = memory.place_of(agent_id, self.conversation.spine)
        if place is None:
            return None
        ranges, lines = _continued(place, self.conversation, 0)
        if self.entered is not None:
            entered = memory.place_of(agent_id, self.entered.spine)
            if entered is None or entered.basis != place.basis:
                return None
            more, more_lines = _continued(entered, self.entered, self.kept)
            ranges, lines = ranges + more.after(len(lines)), lines + more_lines
        return self.draft(place.basis, place.mark, place.end, ranges, lines)

    def draft_by_search(self, basis: Record, stored: Mapping[int, bytes]) -> Draft:
        """Write what is not among the messages of a stored checkpoint."""
        wanted = self._all_lines()
        places = list(basis.ranges)
        offsets = freshen(_search(wanted, [stored[at] for at in places], places))
        lines = [line for line, at in zip(wanted, offsets, strict=True) if at is None]
        number = count()
        spans = ((next(number), 1, True) if at is None else (at, 1, False) for at in offsets)
        return self.draft(basis.checkpoint_id, basis.mark, basis.end, Ranges.of(spans), lines)


def _continued(place: Place, conversation: Conversation, start: int) -> tuple[Ranges, list[bytes]]:
    """The ranges of a conversation from ``start`` on, and the lines of what is not in its place."""
    spine, total = conversation.extent
    ranges = place.ranges
    known = ranges.count
    if known >= total:
        return ranges.cut(start, total), []
    if start:
        known = max(start, known)
        ranges = ranges.cut(start, known)
    return ranges.with_new(total - known), spine.lines(known, total)


def _search(wanted: list[bytes], stored: list[bytes], offsets: list[int]) -> list[int | None]:
    """Where each wanted line lies: after the one before if it can be, else where it is latest, so that
    what lies left of it can go.
    """
    latest = {line: index for index, line in enumerate(stored)}
    found: list[int | None] = []
    following = 0
    for line in wanted:
        follows = following < len(stored) and stored[following] == line
        index = following if follows else latest.get(line)
        found.append(None if index is None else offsets[index])
        following = following if index is None else index + 1
    return found


class Memory:
    """What one store object remembers of the places of messages. Lost, it costs a read, no more.

    It is kept with the spines, so that it goes when they go.
    """

    def place_of(self, agent_id: str, spine: Spine) -> Place | None:
        """Where the messages of a spine lie in the agent's log, as far as is known."""
        place: Place | None = spine.policy.get((self, agent_id))
        return place

    def remember(self, checkpoint: Checkpoint, mark: str, end: int, located: Ranges) -> None:
        """A checkpoint was saved or read, it says that of itself, and its messages lie there."""
        fields = checkpoint.__dict__
        spine, own = fields["conversation"].extent
        key = (self, checkpoint.agent_id)
        spine.policy[key] = Place(checkpoint.id, mark, end, located.cut(0, own))
        if located.count > own:
            kept, rest = codec.shared_with_entry(checkpoint)
            entered = located.cut(0, kept) + located.cut(own, own + len(rest))
            fields["entry"].conversation.spine.policy[key] = Place(checkpoint.id, mark, end, entered)
