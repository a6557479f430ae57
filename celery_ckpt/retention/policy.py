"""What may go: pure decisions about an agent's history, and about the agent.

pinned                                   stays, and so does its agent
the latest of an agent that may go on    stays
beyond the newest ``keep``               goes
older than ``max_age``                   goes
an agent named by its task, so long      goes as a whole
after its last run has ended
the record of any other run, as long     goes, with what steps are left
after it has ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Protocol, TypeVar

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.retention.report import AgentSnapshot, PrunePlan

#: An agent that could not be looked at is looked at again after so many seconds.
_DAMAGED_AGAIN = 86_400.0
#: Never look again sooner than this, nor later: a moment is kept in microseconds.
_SOONEST, _LATEST = 1.0, 3e8
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class Dated(Protocol):
    """A checkpoint, or as much of it as it takes to judge it."""

    @property
    def seq(self) -> int:
        """The store's order."""
        ...

    @property
    def created_at(self) -> datetime:
        """When it was taken."""
        ...

    @property
    def pin(self) -> str | None:
        """The label that it is pinned by."""
        ...


D = TypeVar("D", bound=Dated)


@dataclass(frozen=True)
class RetentionPolicy:
    """Keep the newest ``keep`` and nothing older than ``max_age``; ``None`` sets no limit.

    Whatever the limits say, a pinned checkpoint stays, and so does the latest one of a live agent: the
    agent resumes from it.
    """

    keep: int | None = 20
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 0:
            raise ConfigurationError(reason=f"RetentionPolicy(keep={self.keep}): 0 or more, or None.")
        if self.max_age is not None and self.max_age <= timedelta(0):
            raise ConfigurationError(reason=f"RetentionPolicy(max_age={self.max_age}): must be over 0.")

    def expired(self, history: Sequence[D], now: datetime, *, live: bool = True) -> list[D]:
        """The checkpoints of one agent that may go, newest first.

        Order is the store's (``seq``), not the clock's; only the age limit looks at the clock.
        """
        newest_first = sorted(history, key=attrgetter("seq"), reverse=True)
        keep = len(newest_first) if self.keep is None else self.keep
        return [
            info
            for rank, info in enumerate(newest_first)
            if (rank >= keep or self._is_old(info, now)) and not info.pin and not (live and rank == 0)
        ]

    def _is_old(self, info: Dated, now: datetime) -> bool:
        return self.max_age is not None and now - info.created_at > self.max_age

    def next_expiry(self, history: Sequence[D], *, live: bool = True) -> datetime | None:
        """When the first of these becomes too old, if no other is saved; ``None``: none ever does."""
        if self.max_age is None:
            return None
        newest_first = sorted(history, key=attrgetter("seq"), reverse=True)
        ages = [info.created_at for info in newest_first[1 if live else 0 :] if not info.pin]
        return _later(min(ages), self.max_age) if ages else None


@dataclass(frozen=True)
class Rules:
    """The limits for agents that have none of their own. Times are seconds; ``None`` sets no limit."""

    keep: int | None = 20
    max_age: float | None = None
    #: Of agents that are named by their task, and of runs; agents with a name of their own are never
    #: forgotten.
    forget_after: float | None = None

    def policy_of(self, snapshot: AgentSnapshot) -> RetentionPolicy:
        """The limits of one agent: its own, else those of its last run's task, else these."""
        run, policy = snapshot.last_run, snapshot.policy
        keep = policy.keep or (run.keep if run else None) or self.keep
        max_age = policy.max_age or (run.max_age if run else None) or self.max_age
        return RetentionPolicy(keep, None if max_age is None else _span(max_age))

    def forget_at(self, snapshot: AgentSnapshot) -> datetime | None:
        """When the agent goes as a whole, if nothing changes; ``None``: never."""
        after = snapshot.policy.forget_after or (
            self.forget_after if snapshot.is_named_by_task else None
        )
        if after is None or not _has_ended(snapshot) or any(mark.pin for mark in snapshot.marks):
            return None
        return _later(_end_of(snapshot), _span(after))

    def judge_runs(
        self, snapshot: AgentSnapshot, now: datetime
    ) -> tuple[datetime | None, datetime | None]:
        """The runs go that ended by when, and when to look for others; ``None``: none do, never."""
        after = snapshot.policy.forget_after or self.forget_after
        if after is None or snapshot.oldest_end is None:
            return None, None
        first = _later(snapshot.oldest_end, _span(after))
        if first > now:
            return None, first
        # Which will be the first then is not known yet; but hardly one ends after the last.
        is_over = snapshot.last_run is not None and snapshot.last_run.is_settled
        last = _later(_end_of(snapshot), _span(after)) if is_over else now
        return now - _span(after), last if last > now else None


def old_runs(agent_id: str, runs: Sequence[RunRecord], before: datetime) -> list[RunRecord]:
    """Those of all runs of an agent, in order, whose records go: they are settled and ended by then.

    The run that was added last stays, because it says how the agent stands; so does the task that the
    agent is named after, because by that it is known to be.
    """
    others = (run for run in runs[:-1] if run.run_id != agent_id)
    return [run for run in others if run.is_settled and run.over_since <= before]


def oldest_end(agent_id: str, runs: Sequence[RunRecord]) -> datetime | None:
    """When the first of those ended that may go some time; ``None``: none may."""
    may_go = old_runs(agent_id, runs, before=_END_OF_TIME)
    return min((run.over_since for run in may_go), default=None)


def judge(
    snapshot: AgentSnapshot,
    rules: Rules,
    now: datetime,
    due_at: int | None = None,
    retry: float = 150.0,
) -> PrunePlan:
    """What is to be done about an agent that a sweep has seen."""
    if snapshot.damage:
        return PrunePlan(snapshot, due_at, again=_DAMAGED_AGAIN, retry=retry)
    forget_at = rules.forget_at(snapshot)
    if forget_at is not None and forget_at <= now:
        return PrunePlan(snapshot, due_at, forget=True, retry=retry)
    policy, live = rules.policy_of(snapshot), is_live(snapshot)
    drop = [mark.id for mark in policy.expired(snapshot.marks, now, live=live)]
    gone = set(drop)
    staying = [mark for mark in snapshot.marks if mark.id not in gone]
    runs_before, next_run = rules.judge_runs(snapshot, now)
    coming = forget_at, policy.next_expiry(staying, live=live), next_run
    moments = [at for at in coming if at is not None]
    wait = (min(moments) - now).total_seconds() if moments else None
    again = None if wait is None else max(_SOONEST, min(wait, _LATEST))
    return PrunePlan(snapshot, due_at, drop, runs_before=runs_before, again=again, retry=retry)


def is_live(snapshot: AgentSnapshot) -> bool:
    """May somebody go on with the agent, so that its latest checkpoint is needed?

    Only a task's own agent is ever through: when that has succeeded or was cancelled. One that failed
    may be resumed by hand, and a named one gets its next task whenever it pleases.
    """
    run = snapshot.last_run
    is_over = _has_ended(snapshot) and run is not None and run.status is not RunStatus.FAILED
    return not (is_over and snapshot.is_named_by_task)


def _has_ended(snapshot: AgentSnapshot) -> bool:
    return not snapshot.is_busy and snapshot.last_run is not None and snapshot.last_run.is_settled


def _end_of(snapshot: AgentSnapshot) -> datetime:
    run = snapshot.last_run
    assert run is not None
    # Records of earlier versions do not say when their run ended.
    return run.ended_at or max([run.created_at, *(mark.created_at for mark in snapshot.marks)])


def _later(due_at: datetime, after: timedelta) -> datetime:
    """So much later, or at the end of time: that is also when a record was made that cannot be read."""
    try:
        return due_at + after
    except OverflowError:
        return _END_OF_TIME


def _span(seconds: float) -> timedelta:
    """So many seconds, or as many as there can be."""
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return timedelta.max
