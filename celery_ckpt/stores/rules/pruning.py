"""How a sweep's verdict is carried out: the rules, for the stores that decide in Python.

    the notes have changed since it was seen      nothing goes; look again soon
    it was to be forgotten, and has changed       nothing goes; look again soon
    it has changed, and would lose its latest     nothing goes; look again soon: somebody may have
    checkpoint                                    taken it up, who goes on from that one
    it has changed                                what was to be dropped goes; look again soon
    else                                          that, or all of it, goes; look again when time comes,
                                                  or when it changes

Old runs go like checkpoints; which of them are old is decided anew, in the same step.

An agent is *listed* while a sweep is sure to look at it soon; so a save need not say so each time. A
sweep that is done with an agent takes that away in the same step. ``lua/remove.lua`` and
``lua/delete.lua`` and ``lua/forget_runs.lua`` say the same for Redis.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from celery_ckpt.errors import CheckpointError
from celery_ckpt.retention.report import Notes, Pruned, Sight, Verdict
from celery_ckpt.stores.rules.leases import LeaseState


class Broom(Protocol):
    """One agent, while nobody else can change it."""

    def sight(self) -> Sight:
        """What there is of it now."""
        ...

    def remove(self, checkpoint_ids: list[str]) -> int:
        """Drop checkpoints, what only they needed, and what is said of them; returns the bytes."""
        ...

    def forget_runs(self, before: datetime) -> tuple[int, int]:
        """Drop the records of old runs (see ``retention.old_runs``) and the steps that are left of
        them; how many, and the bytes.
        """
        ...

    def forget(self) -> int:
        """Drop all of it; returns the bytes."""
        ...

    def unlist(self) -> None:
        """The next save has to list it."""
        ...

    def move(self, moment: int, after: float | None) -> None:
        """Give it another moment, or none, if it still has that one."""
        ...


def carry_out(broom: Broom, verdict: Verdict) -> Pruned:
    """See ``CheckpointStore.carry_out``."""
    agent_id, seen = verdict.sight.agent_id, verdict.sight
    now = seen if seen.damage else broom.sight()
    is_same, pruned, again = now.seen == seen.seen, Pruned(agent_id), verdict.again
    loses_latest = bool(now.marks) and now.marks[0].id in verdict.drop
    if now.notes != seen.notes or (not is_same and (verdict.forget or loses_latest)):
        is_same = False
    elif verdict.forget:
        ids = tuple(mark.id for mark in now.marks)
        pruned = Pruned(agent_id, len(ids), broom.forget(), forgotten=True, ids=ids)
    else:
        there = {mark.id for mark in now.marks}
        gone = [name for name in verdict.drop if name in there]
        pruned = _dropped(broom, verdict, gone) if now.seen and not now.damage else pruned
    if is_same and not pruned.forgotten:
        broom.unlist()
    if verdict.moment is not None:
        broom.move(verdict.moment, again if is_same else verdict.retry)
    return pruned


def _dropped(broom: Broom, verdict: Verdict, gone: list[str]) -> Pruned:
    # Also if there is none: a crash may have left parts of earlier ones.
    size, before = broom.remove(gone), verdict.runs_before
    runs, freed = (0, 0) if before is None else broom.forget_runs(before)
    return Pruned(verdict.sight.agent_id, len(gone), size + freed, ids=tuple(gone), runs=runs)


def seen_of(seq: int, steps: int, runs: int, open_runs: int, lease: LeaseState, notes: Notes) -> str:
    """A text that changes whenever the agent does."""
    told = notes.to_bytes().decode()
    return f"{seq} {steps} {runs} {open_runs} {lease.token}:{lease.nonce} {told}"


def damaged(agent_id: str, error: CheckpointError) -> Sight:
    """An agent that cannot be looked at."""
    return Sight(agent_id, seen="?", damage=str(error))
