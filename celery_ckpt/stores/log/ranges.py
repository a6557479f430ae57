"""Where a checkpoint's messages are in its agent's log.

Every message of an agent has an offset in an append-only log. A checkpoint refers to *ranges* of
offsets, in the order of its messages. The offsets of new messages are only known when a save is
written. So a range may be relative to the *base*, the offset of the first message that the save adds.

    "0:40,+0:2"     the messages at 0 to 39, then the two that this save adds
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

_SPAN = re.compile(r"(\+?)([0-9]+):([1-9][0-9]*)")

#: A start, a number of neighbouring messages, and whether the start is relative to the base of a save.
Span = tuple[int, int, bool]


class Ranges:
    """Spans in the order of a checkpoint's messages. Immutable; compared by value.

    Every save creates a few, so they are plain and fast.
    """

    __slots__ = ("count", "spans")

    def __init__(self, spans: tuple[Span, ...] = ()) -> None:
        self.spans = spans
        self.count = 0
        for _, count, _ in spans:
            self.count += count

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Ranges:
        """Return ranges of these spans. Adjacent spans are merged."""
        merged: list[Span] = []
        end, was_new = -1, False
        for start, count, new in spans:
            if not count:
                continue
            if start == end and new == was_new:
                first, before, _ = merged[-1]
                merged[-1] = (first, before + count, new)
            else:
                merged.append((start, count, new))
            end, was_new = start + count, new
        return cls(tuple(merged))

    @classmethod
    def union(cls, spans: Iterable[Span]) -> Ranges:
        """Return the ranges of all messages in the spans, each once, in the order of the log."""
        merged: list[Span] = []
        for start, count, _ in sorted(set(spans)):
            first, before = merged[-1][:2] if merged else (0, -1)
            if start > first + before:
                merged.append((start, count, False))
            else:
                merged[-1] = (first, max(before, start + count - first), False)
        return cls(tuple(merged))

    @classmethod
    def all_new(cls, count: int) -> Ranges:
        """Return the ranges of the first ``count`` new messages of a save."""
        return cls(((0, count, True),) if count else ())

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """Read what ``str`` wrote. Raises ``ValueError`` for anything else."""
        return cls(tuple(_parse_span(part) for part in text.split(","))) if text != "-" else cls()

    def __str__(self) -> str:
        spans = [f"+{start}:{n}" if new else f"{start}:{n}" for start, n, new in self.spans]
        return ",".join(spans) or "-"

    def __repr__(self) -> str:
        return f"Ranges({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self.spans == other.spans

    def __hash__(self) -> int:
        return hash(self.spans)

    def __add__(self, other: Ranges) -> Ranges:
        return Ranges.of((*self.spans, *other.spans))

    def __iter__(self) -> Iterator[int]:
        """Yield the offset of each message. The ranges must be absolute."""
        for start, count, _ in self.spans:
            yield from range(start, start + count)

    def at(self, base: int) -> Ranges:
        """Return the ranges with the new messages from offset ``base`` on."""
        if len(self.spans) == 2:
            # Nearly every save: the messages before, then the new ones.
            (first, before, is_new), (start, count, new) = self.spans
            if new and not is_new and first + before == base + start:
                return Ranges(((first, before + count, False),))
        return Ranges.of(self.placed(base))

    def placed(self, base: int) -> list[Span]:
        """Return the spans with the new messages from offset ``base`` on, not merged."""
        return [(start + base * new, count, False) for start, count, new in self.spans]

    def after(self, count: int) -> Ranges:
        """Return the ranges as they are after ``count`` other new messages of the same save."""
        return Ranges(tuple([(start + count * new, n, new) for start, n, new in self.spans]))

    def cut(self, start: int, stop: int) -> Ranges:
        """Return the ranges of the messages number ``start`` to ``stop - 1``."""
        if start == 0 and stop >= self.count:
            return self
        cut, position = [], 0
        for offset, count, new in self.spans:
            low, high = max(start - position, 0), min(stop - position, count)
            if low < high:
                cut.append((offset + low, high - low, new))
            position += count
        return Ranges(tuple(cut))

    @property
    def place(self) -> str:
        """Low and ranges, as in a record."""
        if len(self.spans) == 2:
            # Nearly every save, see ``at``.
            (first, before, is_new), (start, count, new) = self.spans
            if new and not is_new:
                return f"{first} {first}:{before},+{start}:{count}"
        return f"{self.low} {self}"

    @property
    def low(self) -> str:
        """The smallest offset that the log must keep; ``-`` if all messages are new."""
        low = -1
        for start, _, new in self.spans:
            if not new and (low < 0 or start < low):
                low = start
        return "-" if low < 0 else str(low)


def _parse_span(text: str) -> Span:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError("expected a range")
    return int(found[2]), int(found[3]), found[1] == "+"


#: Kept messages are written again if this many times as many unused ones follow, see ``freshen``.
_GARBAGE_FACTOR = 4


def freshen(offsets: list[int | None]) -> list[int | None]:
    """Replace the offsets of messages that are better written again by ``None``.

    The log can only be trimmed from the left. A system prompt that every compaction keeps would keep
    all messages after it in the log. So what is kept to the left of a gap at least four times as long
    as itself is written again: each copy frees four times as much.
    """
    kept = sorted({offset for offset in offsets if offset is not None})
    left = 0
    keep_from = kept[0] if kept else 0
    for before, after in pairwise(kept):
        left += 1
        if after - before - 1 >= _GARBAGE_FACTOR * left:
            keep_from, left = after, 0
    return [o if o is not None and o >= keep_from else None for o in offsets]
