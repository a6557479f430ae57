"""Ratios that can be trusted on a noisy machine: two things done in turn, in one loop.

Both see the same moments, the same load and the same work before them (a CPU that has been idle for a
while is slow to wake up). The order changes every round; the ratio is the median over blocks of rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

#: Does its own work, then one operation, and says how long the operation took.
Timed = Callable[[], float]

#: How many rounds a block has, at most; there are at least five blocks.
_BLOCK = 50


@dataclass(frozen=True)
class Pair:
    """The times of two things that were done in turn."""

    ours: list[float]
    limit: list[float]

    @property
    def ratio(self) -> float:
        """How many times the limit ours takes."""
        size = max(1, min(_BLOCK, len(self.ours) // 5))
        starts = range(0, len(self.ours) - size + 1, size)
        blocks = (slice(start, start + size) for start in starts)
        return median(median(self.ours[block]) / median(self.limit[block]) for block in blocks)


def alternate(ours: Timed, limit: Timed, rounds: int, *, warm_up: int = 0) -> Pair:
    """Do both in turn, so many times."""
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
