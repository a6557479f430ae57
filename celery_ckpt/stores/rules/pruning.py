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
sweep that is done with an agent takes that away in the same step. ``lua/checkpoint_remove.lua`` and
``lua/agent_delete.lua`` and ``lua/run_forget.lua`` say the same for Redis.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from celery_ckpt.errors import CheckpointError
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, PrunePlan, PruneResult
from celery_ckpt.stores.rules.leases import LeaseState


class Broom(Protocol):
    """One agent, while nobody else can change it."""

    def snapshot(self) -> AgentSnapshot:
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

    def move(self, due_at: int, after: float | None) -> None:
        """Give it another moment, or none, if it still has that one."""
        ...


def apply(broom: Broom, plan: PrunePlan) -> PruneResult:
    """See ``CheckpointStore.carry_out``."""
    agent_id, seen = plan.snapshot.agent_id, plan.snapshot
    now = seen if seen.damage else broom.snapshot()
    is_same, pruned, again = now.seen == seen.seen, PruneResult(agent_id), plan.again
    loses_latest = bool(now.marks) and now.marks[0].id in plan.drop
    if now.policy != seen.policy or (not is_same and (plan.forget or loses_latest)):
        is_same = False
    elif plan.forget:
        ids = tuple(mark.id for mark in now.marks)
        pruned = PruneResult(agent_id, len(ids), broom.forget(), forgotten=True, ids=ids)
    else:
        there = {mark.id for mark in now.marks}
        gone = [name for name in plan.drop if name in there]
        pruned = _dropped(broom, plan, gone) if now.seen and not now.damage else pruned
    if is_same and not pruned.forgotten:
        broom.unlist()
    if plan.due_at is not None:
        broom.move(plan.due_at, again if is_same else plan.retry)
    return pruned


def _dropped(broom: Broom, plan: PrunePlan, gone: list[str]) -> PruneResult:
    # Also if there is none: a crash may have left parts of earlier ones.
    size, before = broom.remove(gone), plan.runs_before
    runs, freed = (0, 0) if before is None else broom.forget_runs(before)
    return PruneResult(plan.snapshot.agent_id, len(gone), size + freed, ids=tuple(gone), runs=runs)


def seen_of(
    seq: int, steps: int, runs: int, open_runs: int, lease: LeaseState, policy: AgentPolicy
) -> str:
    """A text that changes whenever the agent does."""
    told = policy.to_bytes().decode()
    return f"{seq} {steps} {runs} {open_runs} {lease.token}:{lease.nonce} {told}"


def damaged(agent_id: str, error: CheckpointError) -> AgentSnapshot:
    """An agent that cannot be looked at."""
    return AgentSnapshot(agent_id, seen="?", damage=str(error))
