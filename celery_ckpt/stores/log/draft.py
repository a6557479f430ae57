"""What a save has to write: only what the agent's log does not hold yet.

A save refers to messages that earlier saves have written. That is safe only while something keeps
those messages in the log, so every save names a **basis**: a stored checkpoint that refers to all of
them. The store accepts the save only if the basis still exists, in the same atomic step, with the same
**mark**: its base, its ranges and its digest. Nothing else needs checking. The history may have been
pruned since, the agent deleted and created again, or a replica promoted that had missed the last
saves: if the basis exists, so do its messages, at the offsets that it names.

The writer remembers the latest basis of each spine, so that the usual save writes only the new
messages. If it remembers none, or the basis is gone, it reads the agent's latest checkpoint, and does
not write again the messages that it finds there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from itertools import count
from typing import NamedTuple

from celery_ckpt.checkpoint import Checkpoint, header_of, shared_with_entry
from celery_ckpt.conversation import Conversation, Spine
from celery_ckpt.errors import CheckpointTooLarge
from celery_ckpt.json_values import encode
from celery_ckpt.messages import Message
from celery_ckpt.stores.log.ranges import Ranges, freshen
from celery_ckpt.stores.log.record import DIGEST_LENGTH, Record


class Basis(Enum):
    """The basis of a save that does not depend on a certain checkpoint."""

    #: The agent has no checkpoint at all, and must still have none.
    EMPTY = ""
    #: The save contains all its messages. Any state of the agent will do.
    ANY = "*"


#: The iteration in a header. What comes before it are numbers.
_ITERATION = re.compile(rb'"iteration":(\d+)')


class Draft(NamedTuple):
    """A save, ready to be written. Only its place in the log is still missing."""

    basis: str | Basis
    #: The mark that the basis must have: base, low, ranges and digest.
    mark: str
    #: Where the log ended with the basis: the base of this save, unless another save came in between.
    end: int
    #: The messages to append to the log, one JSON line each.
    messages: list[bytes]
    #: All messages of the checkpoint; the new ones relative to the base.
    ranges: Ranges
    #: Low, ranges and digest, as the record has them before the header.
    place: str
    #: The record without its stamp: the place and the header.
    rest: bytes

    @property
    def iteration(self) -> int:
        """The iteration of the checkpoint, from its header."""
        found = _ITERATION.search(self.rest)
        return int(found[1]) if found else 0


class Place(NamedTuple):
    """Where the first messages of a spine are in the log, as long as the basis exists."""

    basis: str
    mark: str
    #: Where the log ended with the basis.
    end: int
    ranges: Ranges

    def first(self, length: int) -> Place:
        """Return the place of the first ``length`` messages, for a branch of the spine."""
        return self._replace(ranges=self.ranges.cut(0, length))


class Parts:
    """A checkpoint, split into what is written: its messages in order, and its header."""

    __slots__ = ("conversation", "digest", "entered", "header", "kept", "rest", "size", "spine")

    def __init__(self, checkpoint: Checkpoint) -> None:
        fields = checkpoint.__dict__
        self.conversation: Conversation = fields["conversation"]
        self.entered: Conversation | None = None
        self.kept = 0
        self.rest: list[Message] = []
        if fields["entry"] is not None:
            self.kept, self.rest = shared_with_entry(checkpoint)
        spine, count = self.conversation.extent
        self.spine = spine
        if self.rest:
            self.entered = fields["entry"].conversation
            spine, count = Spine([*self.conversation, *self.rest]), count + len(self.rest)
        self.header = encode(header_of(checkpoint, self.kept))
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

    def _draft(
        self, basis: str | Basis, mark: str, end: int, ranges: Ranges, messages: list[bytes]
    ) -> Draft:
        place = f"{ranges.place} {self.digest}"
        rest = f"{place} ".encode() + self.header
        return Draft(basis, mark, end, messages, ranges, place, rest)

    def draft_of_all(self, basis: Basis) -> Draft:
        """Return a draft that writes every message."""
        lines = self._all_lines()
        return self._draft(basis, "", 0, Ranges.all_new(len(lines)), lines)

    def _all_lines(self) -> list[bytes]:
        own = self.spine.lines(0, len(self.conversation))
        return [*own, *(message.to_json() for message in self.rest)]

    def draft_by_memory(self, memory: Memory, agent_id: str) -> Draft | None:
        """Return a draft that writes what follows the remembered places, or ``None`` without them."""
        place: Place | None = self.spine.caches.get((memory, agent_id))
        if place is None:
            return None
        ranges, lines = _continued(place, self.conversation, 0)
        if self.entered is not None:
            entered: Place | None = self.entered.spine.caches.get((memory, agent_id))
            if entered is None or entered.basis != place.basis:
                return None
            more, more_lines = _continued(entered, self.entered, self.kept)
            ranges, lines = ranges + more.after(len(lines)), lines + more_lines
        return self._draft(place.basis, place.mark, place.end, ranges, lines)

    def draft_by_search(self, basis: Record, stored: Mapping[int, bytes]) -> Draft:
        """Return a draft that writes the messages that a stored checkpoint does not have."""
        wanted = self._all_lines()
        places = list(basis.ranges)
        offsets = freshen(_search(wanted, [stored[at] for at in places], places))
        lines = [line for line, at in zip(wanted, offsets, strict=True) if at is None]
        number = count()
        spans = ((next(number), 1, True) if at is None else (at, 1, False) for at in offsets)
        return self._draft(basis.checkpoint_id, basis.mark, basis.end, Ranges.of(spans), lines)


def _continued(place: Place, conversation: Conversation, start: int) -> tuple[Ranges, list[bytes]]:
    """Return the ranges of a conversation from ``start`` on, and the lines that its place lacks."""
    spine, total = conversation.extent
    ranges = place.ranges
    known = ranges.count
    if known >= total:
        return ranges.cut(start, total), []
    if start:
        known = max(start, known)
        ranges = ranges.cut(start, known)
    return Ranges((*ranges.spans, (0, total - known, True))), spine.lines(known, total)


def _search(wanted: list[bytes], stored: list[bytes], offsets: list[int]) -> list[int | None]:
    """Return the offset of each wanted line, or ``None``.

    A line is taken from right after the line before it if it is there, else from its latest place, so
    that the log can be trimmed up to it.
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
    """What one store object remembers about the places of messages. Without it a save reads first.

    The places are kept with the spines, under the key (memory, agent), and live as long as they do.
    """

    def remember(self, checkpoint: Checkpoint, mark: str, end: int, located: Ranges) -> None:
        """Remember the mark of a checkpoint that was saved or read, and where its messages are."""
        fields = checkpoint.__dict__
        spine, own = fields["conversation"].extent
        key = (self, checkpoint.agent_id)
        if located.count > own:
            kept, rest = shared_with_entry(checkpoint)
            entered = located.cut(0, kept) + located.cut(own, own + len(rest))
            fields["entry"].conversation.spine.caches[key] = Place(checkpoint.id, mark, end, entered)
            located = located.cut(0, own)
        spine.caches[key] = Place(checkpoint.id, mark, end, located)
