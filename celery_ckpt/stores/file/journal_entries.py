"""The lines of a journal, read one after the other. ``journal.py`` describes them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from urllib.parse import unquote

_UNREADABLE = b"(it is unreadable)"
_LOST = b"(it is missing)"


@dataclass
class Save:
    """A save: where its record and its messages are."""

    checkpoint_id: str
    record: bytes
    seq: int
    base: int
    segment: int
    #: How many messages it should have, or ``None`` if that cannot be read.
    count: int | None
    #: Start and end of the line of each message, in the file of its segment.
    messages: list[tuple[int, int]] = field(default_factory=list)
    is_pruned: bool = False

    @property
    def is_whole(self) -> bool:
        """True if it has all its messages."""
        return self.count is None or len(self.messages) >= self.count

    @property
    def is_unreadable(self) -> bool:
        """True if its line is damaged, so that its id is not certain."""
        return self.count is None

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.base + len(self.messages)


class Scan:
    """The saves in the lines that were read."""

    def __init__(self) -> None:
        self._saves: list[Save] = []
        self.live: dict[str, Save] = {}

    @property
    def seq(self) -> int:
        """The number of the last save."""
        return self._saves[-1].seq if self._saves else 0

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self._saves[-1].end if self._saves else 0

    def forget_segments(self, deleted: Set[int]) -> None:
        """Drop the saves of files that were deleted."""
        self._saves = [save for save in self._saves if save.segment not in deleted]
        self.live = {name: save for name, save in self.live.items() if save.segment not in deleted}

    def places(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield segment, offset, and start and end of the line, for the messages at these offsets."""
        for save in self._saves:
            if save.base < stop and save.end > start:
                for offset in range(max(start, save.base), min(stop, save.end)):
                    yield (save.segment, offset, *save.messages[offset - save.base])

    def is_needed(self, segment: int, low: int) -> bool:
        """Return True if a segment has a checkpoint, or a message that a checkpoint needs."""
        own = (save for save in self._saves if save.segment == segment)
        return any(not save.is_pruned or save.end > low for save in own)

    def take(self, segment: int, position: int, data: bytes) -> int:
        """Read the content of a file from ``position`` on. Return how many bytes of it are complete.

        The rest is an incomplete save, which does not count.
        """
        whole, current = 0, None
        for start, line in _lines(data):
            is_message = line.startswith(b"{") or (
                current and not current.is_whole and line[:1] != b"#"
            )
            if is_message:
                if current is not None:
                    end = position + start + len(line)
                    current.messages.append((position + start, end))
            else:
                current = self._take_entry(segment, position + start, line)
            if current is None or current.is_whole:
                whole = start + len(line) + 1
        if current is not None and not current.is_whole:
            self._saves.remove(current)
            self.live.pop(current.checkpoint_id, None)
        return whole

    def _take_entry(self, segment: int, position: int, line: bytes) -> Save | None:
        is_right = line.startswith(b"#%08x " % zlib.crc32(line[10:]))
        kind, *words = line[10:].split(b" ")
        if kind == b"prune" and is_right:
            for name in words:
                removed = self.live.pop(unquote(name.decode()), None)
                if removed is not None:
                    removed.is_pruned = True
            return None
        if kind == b"save" and is_right:
            record = line.split(b" ", 4)[4]
            seq, base = map(int, record.split(b" ", 3)[1:3])
            if self._saves and seq > self.seq + 1:
                self.add_unreadable(
                    f"(lost, before seq {seq} in journal-{segment:08d})", segment, _LOST
                )
            return self._add(
                Save(unquote(words[1].decode()), record, seq, base, segment, int(words[0]))
            )
        checkpoint_id = f"(unreadable, in journal-{segment:08d} at byte {position})"
        if kind == b"save" and len(words) > 2:
            checkpoint_id = unquote(words[1].decode(errors="replace")) or checkpoint_id
        return self.add_unreadable(checkpoint_id, segment, _UNREADABLE)

    def add_unreadable(self, checkpoint_id: str, segment: int, record: bytes) -> Save:
        """Add a checkpoint that is known to have been saved and cannot be read."""
        known = self.live.get(checkpoint_id)
        return known or self._add(Save(checkpoint_id, record, self.seq + 1, self.end, segment, None))

    def _add(self, save: Save) -> Save:
        self._saves.append(save)
        self.live[save.checkpoint_id] = save
        return save


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines of some bytes, and where each begins."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield start, data[start:end]
        start = end + 1
