"""When a body of a run was active, according to the notes in a ledger.

A body is active from its "begin" to its "end". A killed body has no "end": it ends at the kill, or at
its last note if that is later, because a kill is noted just before it is made. A frozen body is not
active.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.ledger import Note

Span = tuple[float, float]


@dataclass(frozen=True)
class Body:
    """One execution of the body of a task."""

    pid: int
    attempt: int | None
    begin: float
    end: float
    how: str
    """``returned``, the name of an exception, ``killed``, or ``running``."""
    frozen: tuple[Span, ...] = field(default=())
    #: The time at which it last did something: it began, or made a call.
    last: float = inf

    def active(self, grace_after_thaw: float) -> list[Span]:
        """Return the spans of time in which it was active, without a grace period after each thaw."""
        spans, begin = [], self.begin
        for stop, go in self.frozen:
            spans.append((begin, stop))
            begin = go + grace_after_thaw
        spans.append((begin, self.end))
        return [(begin, end) for begin, end in spans if begin < end]

    def __str__(self) -> str:
        return (
            f"[pid {self.pid}, attempt {self.attempt}, {self.begin:.3f} to {self.end:.3f}, {self.how}]"
        )


def of_run(notes: Sequence[Note], run_id: str) -> list[Body]:
    """Return the bodies of a run, in the order of their start."""
    begins = [note for note in notes if note.run_id == run_id and note.what == "begin"]
    return sorted((_body(begin, notes) for begin in begins), key=lambda body: body.begin)


def overlaps(bodies: Sequence[Body], grace_after_thaw: float = 0.0) -> list[tuple[Body, Body]]:
    """Return the pairs of bodies that were active at the same time."""
    return [
        (one, other)
        for one, other in combinations(bodies, 2)
        if _meet(one.active(grace_after_thaw), other.active(grace_after_thaw))
    ]


def _meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


def _body(begin: Note, notes: Sequence[Note]) -> Body:
    own = [note for note in notes if _identity(note) == _identity(begin) and note.at >= begin.at]
    end, how = _end(begin, own, notes)
    frozen = tuple(
        (max(begin.at, stop), min(go, end))
        for stop, go in _freezes(begin.pid, notes)
        if stop < end and go > begin.at
    )
    # To record a result that another body has recorded changes nothing, and is allowed without a lease.
    last = max(note.at for note in own if note.what not in ("recorded", "end"))
    return Body(begin.pid, begin.facts.get("attempt"), begin.at, end, how, frozen, last)


def _identity(note: Note) -> tuple[object, ...]:
    """Return what identifies the body of a note: its name, or else the process and the attempt."""
    if "body" in note.facts:
        return note.run_id, note.facts["body"]
    return note.run_id, note.pid, note.facts.get("attempt")


def _end(begin: Note, own: Sequence[Note], notes: Sequence[Note]) -> tuple[float, str]:
    for note in own:
        if note.what == "end":
            return note.at, note.facts.get("how", "returned")
    for note in notes:
        if note.what == "killed" and begin.pid in note["pids"]:
            return max(note.at, own[-1].at), "killed"
    return inf, "running"


def _freezes(pid: int, notes: Sequence[Note]) -> list[Span]:
    spans: list[Span] = []
    for note in notes:
        if note.what == "frozen" and pid in note["pids"]:
            spans.append((note.at, inf))
        elif note.what == "thawed" and pid in note["pids"] and spans:
            spans[-1] = spans[-1][0], note.at
    return spans
