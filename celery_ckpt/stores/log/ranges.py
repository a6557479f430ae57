"""Where a checkpoint's messages lie in its agent's log.

Every message of an agent has an offset in an append-only log. A checkpoint refers to *ranges* of
offsets, in the order of its messages. When a save is prepared, nobody knows yet at which offset its
new messages will land: that is decided when it is written. So a range may be relative to the *base*,
the offset of the first message which that save adds.

    "0:40,+0:2"     the messages at 0 to 39, then the two that this save brings
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

    Every save makes a few of these, so they are plain and quick.
    """

    __slots__ = ("count", "spans")

    def __init__(self, spans: tuple[Span, ...] = ()) -> None:
        self.spans = spans
        self.count = 0
        for _, count, _ in spans:
            self.count += count

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Ranges:
        """Put spans in a row, merging those that continue each other."""
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
        """Every message that is in any of the spans, once, in the order of the log."""
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
        """The first ``count`` new messages of a save."""
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
        """The offsets, one a message; only of ranges that are at their place."""
        for start, count, _ in self.spans:
            yield from range(start, start + count)

    def at(self, base: int) -> Ranges:
        """The same with the new messages at their place."""
        if len(self.spans) == 2:
            # Nearly every save: what there was, and what is new behind it.
            (first, before, is_new), (start, count, new) = self.spans
            if new and not is_new and first + before == base + start:
                return Ranges(((first, before + count, False),))
        return Ranges.of(self.placed(base))

    def placed(self, base: int) -> list[Span]:
        """The spans with the new messages at their place, not merged."""
        return [(start + base * new, count, False) for start, count, new in self.spans]

    def after(self, count: int) -> Ranges:
        """The same, if ``count`` new messages come before its own new ones."""
        return Ranges(tuple([(start + count * new, n, new) for start, n, new in self.spans]))

    def cut(self, start: int, stop: int) -> Ranges:
        """The ranges of messages number ``start`` to ``stop - 1`` of these."""
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
        """Low and ranges, as a record has them."""
        if len(self.spans) == 2:
            # Nearly every save, see ``at``.
            (first, before, is_new), (start, count, new) = self.spans
            if new and not is_new:
                return f"{first} {first}:{before},+{start}:{count}"
        return f"{self.low} {self}"

    @property
    def low(self) -> str:
        """The smallest offset that the log must keep for these; ``-`` if all are new."""
        low = -1
        for start, _, new in self.spans:
            if not new and (low < 0 or start < low):
                low = start
        return "-" if low < 0 else str(low)


def _parse_span(text: str) -> Span:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError("where a range belongs is no range")
    return int(found[2]), int(found[3]), found[1] == "+"


#: A kept island is written again if that much more garbage lies behind it: see ``freshen``.
_GARBAGE_FACTOR = 4


def freshen(offsets: list[int | None]) -> list[int | None]:
    """Decide which of the messages found in the log are better written again.

    The log can only be trimmed from the left. A system prompt that every compaction keeps would hold
    all the messages ever written behind it. So whatever is kept to the left of a gap at least four
    times as long as itself is written again: each copy frees four times as much.
    """
    kept = sorted({offset for offset in offsets if offset is not None})
    left = 0
    keep_from = kept[0] if kept else 0
    for before, after in pairwise(kept):
        left += 1
        if after - before - 1 >= _GARBAGE_FACTOR * left:
            keep_from, left = after, 0
    return [o if o is not None and o >= keep_from else None for o in offsets]
