"""Which checkpoints, runs and agents may be deleted: pure decisions.

a pinned checkpoint                              kept, and so is its agent
the latest checkpoint of an agent that may       kept
continue
checkpoints beyond the newest ``keep``           removed
checkpoints older than ``max_age``               removed
an agent named by its task, ``forget_after``     deleted
seconds after its last run ended
the record of any other run, as many seconds     deleted, with the steps that are left of it
after it ended
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Protocol, TypeVar

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.records import RunOutline, RunStatus
from celery_ckpt.retention.report import AgentSnapshot, PrunePlan

#: Seconds until an agent that could not be read is checked again.
_DAMAGED_AGAIN = 86_400.0
#: Seconds between two checks, at least and at most: the due time is kept in microseconds.
_SOONEST, _LATEST = 1.0, 3e8
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class Dated(Protocol):
    """A checkpoint, or as much of it as retention needs."""

    @property
    def seq(self) -> int:
        """Return its place in the store's order."""
        ...

    @property
    def created_at(self) -> datetime:
        """Return when it was taken."""
        ...

    @property
    def pin(self) -> str | None:
        """Return the label of its pin, or ``None``."""
        ...


D = TypeVar("D", bound=Dated)
R = TypeVar("R", bound=RunOutline)


@dataclass(frozen=True)
class RetentionPolicy:
    """Keep the newest ``keep`` and nothing older than ``max_age``; ``None`` sets no limit.

    A pinned checkpoint is always kept, and so is the latest checkpoint of a live agent: the agent
    resumes from it.
    """

    keep: int | None = 20
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 0:
            raise ConfigurationError(
                reason=f"RetentionPolicy(keep={self.keep}): use 0 or more, or None."
            )
        if self.max_age is not None and self.max_age <= timedelta(0):
            raise ConfigurationError(
                reason=f"RetentionPolicy(max_age={self.max_age}): use more than 0."
            )

    def expired(self, history: Sequence[D], now: datetime, *, live: bool = True) -> list[D]:
        """Return the checkpoints of one agent that may be removed, newest first.

        The order is the store's (``seq``), not the clock's. Only the age limit uses the clock.
        """
        newest_first = sorted(history, key=attrgetter("seq"), reverse=True)
        first, limit = 1 if live else 0, self.max_age
        kept = len(newest_first) if self.keep is None else max(self.keep, first)
        expired = newest_first[kept:]
        if limit is not None:
            expired[:0] = [info for info in newest_first[first:kept] if now - info.created_at > limit]
        return [info for info in expired if not info.pin]

    def next_expiry(self, history: Iterable[D], *, live: bool = True) -> datetime | None:
        """Return when the first of these becomes too old, if no other is saved; ``None``: never."""
        if self.max_age is None:
            return None
        newest_first = sorted(history, key=attrgetter("seq"), reverse=True)
        ages = [info.created_at for info in newest_first[1 if live else 0 :] if not info.pin]
        return _later(min(ages), self.max_age) if ages else None


@dataclass(frozen=True)
class Rules:
    """The limits for agents that have none of their own. Times are seconds; ``None``: no limit."""

    keep: int | None = 20
    max_age: float | None = None
    #: For agents that are named by their task, and for runs. Agents with a name of their own are never
    #: deleted.
    forget_after: float | None = None

    def policy_of(self, snapshot: AgentSnapshot) -> RetentionPolicy:
        """Return the limits of one agent: its own, else its last run's task's, else these."""
        run, policy = snapshot.last_run, snapshot.policy
        keep = policy.keep or (run.keep if run else None) or self.keep
        max_age = policy.max_age or (run.max_age if run else None) or self.max_age
        return RetentionPolicy(keep, None if max_age is None else _span(max_age))

    def forget_at(self, snapshot: AgentSnapshot) -> datetime | None:
        """Return when the agent may be deleted, if nothing changes; ``None``: never."""
        after = snapshot.policy.forget_after or (
            self.forget_after if snapshot.is_named_by_task else None
        )
        if after is None or not _has_ended(snapshot) or any(one.pin for one in snapshot.checkpoints):
            return None
        return _later(_end_of(snapshot), _span(after))

    def judge_runs(
        self, snapshot: AgentSnapshot, now: datetime
    ) -> tuple[datetime | None, datetime | None]:
        """Return (cutoff, next check): delete the records of runs that ended by the cutoff."""
        after = snapshot.policy.forget_after or self.forget_after
        if after is None or snapshot.earliest_end is None:
            return None, None
        first = _later(snapshot.earliest_end, _span(after))
        if first > now:
            return None, first
        # Which run expires next is unknown; but hardly any run ends after the last one.
        is_settled = snapshot.last_run is not None and snapshot.last_run.is_settled
        last = _later(_end_of(snapshot), _span(after)) if is_settled else now
        return now - _span(after), last if last > now else None


def old_runs(agent_id: str, runs: Sequence[R], before: datetime) -> list[R]:
    """Return the runs whose records may be deleted: they are settled, and ended by then.

    ``runs`` are all runs of the agent, in order. The run that was added last is kept, because it has
    the agent's status. The task that the agent is named after is kept, because it tells that the agent
    is named by its task.
    """
    others = (run for run in runs[:-1] if run.run_id != agent_id)
    return [run for run in others if run.is_settled and run.counts_as_ended_at <= before]


def judge(
    snapshot: AgentSnapshot,
    rules: Rules,
    now: datetime,
    due_at: int | None = None,
    retry: float = 150.0,
) -> PrunePlan:
    """Decide what a sweep does to an agent."""
    if snapshot.damage:
        return PrunePlan(snapshot, due_at, again=_DAMAGED_AGAIN, retry=retry)
    forget_at = rules.forget_at(snapshot)
    if forget_at is not None and forget_at <= now:
        return PrunePlan(snapshot, due_at, forget=True, retry=retry)
    policy, live = rules.policy_of(snapshot), is_live(snapshot)
    remove = [one.id for one in policy.expired(snapshot.checkpoints, now, live=live)]
    removed = set(remove)
    kept = (one for one in snapshot.checkpoints if one.id not in removed)
    runs_before, next_run = rules.judge_runs(snapshot, now)
    expiries = forget_at, policy.next_expiry(kept, live=live), next_run
    nearest = min((at for at in expiries if at is not None), default=None)
    again = None
    if nearest is not None:
        again = max(_SOONEST, min((nearest - now).total_seconds(), _LATEST))
    return PrunePlan(snapshot, due_at, remove, runs_before=runs_before, again=again, retry=retry)


def is_live(snapshot: AgentSnapshot) -> bool:
    """True if the agent may continue, so that its latest checkpoint is needed.

    Only an agent that is named by its task ever ends: when the task has succeeded or was cancelled. A
    failed task may be resumed, and a named agent may get another task at any time.
    """
    run = snapshot.last_run
    cannot_resume = _has_ended(snapshot) and run is not None and run.status is not RunStatus.FAILED
    return not (cannot_resume and snapshot.is_named_by_task)


def _has_ended(snapshot: AgentSnapshot) -> bool:
    return not snapshot.is_busy and snapshot.last_run is not None and snapshot.last_run.is_settled


def _end_of(snapshot: AgentSnapshot) -> datetime:
    run = snapshot.last_run
    assert run is not None
    # A record need not say when its run ended.
    return run.ended_at or max([run.created_at, *(one.created_at for one in snapshot.checkpoints)])


def _later(time: datetime, after: timedelta) -> datetime:
    """Return ``time + after``, at most ``datetime.max``: unreadable records have that date."""
    try:
        return time + after
    except OverflowError:
        return _END_OF_TIME


def _span(seconds: float) -> timedelta:
    """Return a timedelta, at most the largest one."""
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return timedelta.max
