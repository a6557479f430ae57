"""What a sweep reads, plans and reports.

A sweep claims agents that have changed or are due (``CheckpointStore.claim_due``). It reads an
``AgentSnapshot`` of each, ``retention.policy`` turns it into a ``PrunePlan``, and the store applies
the plan and returns a ``PruneResult``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, NamedTuple

from pydantic import Field

from celery_ckpt.checkpoint import Value
from celery_ckpt.json_values import decode, encode, from_microseconds
from celery_ckpt.records import RunRecord, RunStatus

#: The metadata key that pins a checkpoint when it is taken.
PIN = "pin"

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def without_pin(metadata: dict[str, str]) -> dict[str, str]:
    """Return the metadata for another checkpoint: a pin belongs to one checkpoint only."""
    return {key: value for key, value in metadata.items() if key != PIN}


class CheckpointSummary(NamedTuple):
    """As much of a checkpoint as retention needs."""

    id: str
    seq: int
    #: Microseconds since 1970: a sweep reads millions, and rarely needs the date.
    taken: int
    #: The label of its pin, if it is pinned.
    pin: str | None = None
    #: The size of its record, in bytes.
    size: int = 0
    #: The smallest offset in the log that it refers to, in stores that have a log.
    low: int = 0

    @property
    def created_at(self) -> datetime:
        """Return when it was taken."""
        return from_microseconds(self.taken)


class AgentPolicy(Value):
    """The pins and limits of one agent."""

    #: Labels by checkpoint id; an empty label cancels a pin that was saved with the checkpoint.
    pins: dict[str, str] = Field(default_factory=dict)
    #: The agent's own limits; ``None``: the limits of its task or of the settings.
    keep: Annotated[int, Field(ge=1)] | None = None
    max_age: Seconds | None = None
    forget_after: Seconds | None = None

    def label_of(self, checkpoint_id: str, given: str | None) -> str | None:
        """Return the label of a checkpoint; ``given`` is the label that was saved with it."""
        return self.pins.get(checkpoint_id, given) or None

    def labelled(self, checkpoint_id: str, label: str | None, given: str | None) -> AgentPolicy:
        """Return a policy with another label for a checkpoint, or with none."""
        others = self.without([checkpoint_id])
        if label == (given or None):
            return others
        return others.model_copy(update={"pins": {**others.pins, checkpoint_id: label or ""}})

    def without(self, checkpoint_ids: Iterable[str]) -> AgentPolicy:
        """Return a policy that does not mention these checkpoints."""
        gone = self.pins.keys() & set(checkpoint_ids)
        if not gone:
            return self
        pins = {name: label for name, label in self.pins.items() if name not in gone}
        return self.model_copy(update={"pins": pins})

    def to_bytes(self) -> bytes:
        """Return the stored form; empty for the default policy."""
        if not (self.pins or self.keep or self.max_age or self.forget_after):
            return b""
        return encode(self.model_dump(exclude_defaults=True))

    @classmethod
    def from_bytes(cls, stored: bytes) -> AgentPolicy:
        """Read what ``to_bytes`` wrote. Raises ``ValueError``."""
        return cls.model_validate(decode(stored)) if stored else cls()


class RunSummary(NamedTuple):
    """As much of a run as retention needs."""

    run_id: str
    status: RunStatus
    is_settled: bool
    created_at: datetime
    ended_at: datetime | None = None
    keep: int | None = None
    max_age: float | None = None

    @classmethod
    def of(cls, run: RunRecord | None) -> RunSummary | None:
        """Return the summary of a run record."""
        if run is None:
            return None
        times = run.created_at, run.ended_at
        return cls(run.run_id, run.status, run.is_settled, *times, run.keep, run.max_age)


@dataclass(frozen=True)
class AgentSnapshot:
    """What a sweep reads of an agent."""

    agent_id: str
    #: Changes whenever the agent does; empty if there is no such agent.
    seen: str = ""
    #: Its checkpoints, newest first.
    checkpoints: list[CheckpointSummary] = field(default_factory=list)
    policy: AgentPolicy = field(default_factory=AgentPolicy)
    #: True if a run is open, or the lease is held.
    is_busy: bool = False
    #: True if one of its runs is the task that it is named after.
    is_named_by_task: bool = False
    #: The run that was added last.
    last_run: RunSummary | None = None
    #: No run that may be deleted (``policy.old_runs``) ended before this; ``None``: there is none.
    earliest_end: datetime | None = None
    #: In Redis: where the log begins, and the latest sequence number of the checkpoints.
    first: int = 0
    seq: int = 0
    #: Why it could not be read; empty if it could.
    damage: str = ""


@dataclass(frozen=True)
class PrunePlan:
    """What a sweep decided about an agent."""

    snapshot: AgentSnapshot
    #: When the agent was due; ``None``: it was not claimed from the schedule.
    due_at: int | None = None
    #: The ids of the checkpoints to remove.
    remove: list[str] = field(default_factory=list)
    #: Delete the records of runs that ended by then (``policy.old_runs``); ``None``: of no run.
    runs_before: datetime | None = None
    #: True to delete the whole agent.
    forget: bool = False
    #: Seconds until the next check, if nothing changes; ``None``: no check.
    again: float | None = None
    #: Seconds until the next check, if the agent has changed since the snapshot.
    retry: float = 150.0


class PruneResult(NamedTuple):
    """What a sweep did to one agent."""

    agent_id: str
    #: How many checkpoints were removed; in a dry run, how many would be.
    checkpoints: int = 0
    #: How many bytes were freed, as far as the store knows.
    bytes: int = 0
    #: True if the whole agent was deleted.
    forgotten: bool = False
    #: The ids of the removed checkpoints.
    ids: tuple[str, ...] = ()
    #: How many records of old runs were deleted, or would be, of an agent that is kept.
    runs: int = 0

    def and_then(self, other: PruneResult) -> PruneResult:
        """Return the sum of this and a later result for the same agent."""
        return PruneResult(
            self.agent_id,
            self.checkpoints + other.checkpoints,
            self.bytes + other.bytes,
            self.forgotten or other.forgotten,
            self.ids + other.ids,
            self.runs + other.runs,
        )

    @property
    def is_any(self) -> bool:
        """True if anything was removed or deleted."""
        return bool(self.checkpoints or self.forgotten or self.runs)


@dataclass
class PruneReport:
    """What a sweep did to many agents."""

    #: How many were checked.
    agents: int = 0
    #: How many had something removed or deleted.
    pruned: int = 0
    #: How many were deleted.
    forgotten: int = 0
    checkpoints: int = 0
    #: How many records of old runs were deleted, of agents that are kept.
    runs: int = 0
    bytes: int = 0
    #: True if nothing was changed: the counts are what would be removed.
    dry_run: bool = False

    def add(self, one: PruneResult) -> None:
        """Add the result for one agent."""
        self.agents += 1
        self.pruned += one.is_any
        self.forgotten += one.forgotten
        self.checkpoints += one.checkpoints
        self.runs += one.runs
        self.bytes += one.bytes

    def include(self, other: PruneReport) -> None:
        """Add the counts of another report."""
        self.agents += other.agents
        self.pruned += other.pruned
        self.forgotten += other.forgotten
        self.checkpoints += other.checkpoints
        self.runs += other.runs
        self.bytes += other.bytes

    def __str__(self) -> str:
        prune, delete = ("Would prune", "would delete") if self.dry_run else ("Pruned", "deleted")
        checkpoints, agents = _counted(self.checkpoints, "checkpoint"), _counted(self.pruned, "agent")
        return (
            f"{prune} {checkpoints} from {agents}; "
            f"{delete} {_counted(self.forgotten, 'agent')} and {_counted(self.runs, 'old run')} "
            f"({_size(self.bytes)}; {_counted(self.agents, 'agent')} checked)."
        )


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _size(number: int) -> str:
    """Return a number of bytes for people, such as 1.2 MB."""
    if number < 1_000:
        return _counted(number, "byte")
    size, unit = number / 1_000, "kB"
    for larger in ("MB", "GB", "TB"):
        if size < 999.95:
            break
        size, unit = size / 1_000, larger
    return f"{size:.1f} {unit}"
