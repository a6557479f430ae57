"""Ratios that are reliable on a noisy machine: two operations alternate in one loop.

Both see the same load, and the same work before them (a CPU that was idle is slow to wake up). The
order changes every round. The ratio is the median over blocks of rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

#: Does some work, then one operation, and returns the duration of the operation.
Timed = Callable[[], float]

#: The largest number of rounds in a block. There are at least five blocks.
_BLOCK = 50


@dataclass(frozen=True)
class Pair:
    """The durations of two alternating operations."""

    ours: list[float]
    limit: list[float]

    @property
    def ratio(self) -> float:
        """Our duration as a multiple of the limit."""
        size = max(1, min(_BLOCK, len(self.ours) // 5))
        starts = range(0, len(self.ours) - size + 1, size)
        blocks = (slice(start, start + size) for start in starts)
        return median(median(self.ours[block]) / median(self.limit[block]) for block in blocks)


def alternate(ours: Timed, limit: Timed, rounds: int, *, warm_up: int = 0) -> Pair:
    """Alternate both operations for this many rounds."""
    pair = Pair([], [])
    for number in range(-warm_up, rounds):
        if number % 2:
            a, b = ours(), limit()
        else:
            b, a = limit(), ours()
        if number >= 0:
            pair.ours.append(a)
            pair.limit.append(b)
    return pair
