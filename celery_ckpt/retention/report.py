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
from celery_ckpt.clock import from_microseconds
from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import RunRecord, RunStatus

#: The metadata by which a checkpoint is pinned as it is taken.
PIN = "pin"

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def without_pin(metadata: dict[str, str]) -> dict[str, str]:
    """The metadata for another checkpoint: a pin is for one only."""
    return {key: value for key, value in metadata.items() if key != PIN}


class CheckpointSummary(NamedTuple):
    """As much of a checkpoint as it takes to judge it."""

    id: str
    seq: int
    #: When, in microseconds since 1970: a sweep reads millions, and rarely asks for the date.
    taken: int
    #: The label that it is pinned by.
    pin: str | None = None
    #: Of its record, in bytes.
    size: int = 0
    #: The smallest offset in the log that it refers to, in stores with a log.
    low: int = 0

    @property
    def created_at(self) -> datetime:
        """When it was taken."""
        return from_microseconds(self.taken)


class AgentPolicy(Value):
    """What was decided about one agent, beside its history."""

    #: Checkpoint ids and their labels; an empty one takes back a pin that came with the checkpoint.
    pins: dict[str, str] = Field(default_factory=dict)
    #: Limits of this agent's own; ``None``: as its task or the settings say.
    keep: Annotated[int, Field(ge=1)] | None = None
    max_age: Seconds | None = None
    forget_after: Seconds | None = None

    def label_of(self, checkpoint_id: str, given: str | None) -> str | None:
        """The label of a checkpoint that was given one, or none, as it was taken."""
        return self.pins.get(checkpoint_id, given) or None

    def labelled(self, checkpoint_id: str, label: str | None, given: str | None) -> AgentPolicy:
        """The same with another label for a checkpoint, or with none."""
        others = self.without([checkpoint_id])
        if label == (given or None):
            return others
        return others.model_copy(update={"pins": {**others.pins, checkpoint_id: label or ""}})

    def without(self, checkpoint_ids: Iterable[str]) -> AgentPolicy:
        """The same without a word on these checkpoints."""
        gone = self.pins.keys() & set(checkpoint_ids)
        if not gone:
            return self
        pins = {name: label for name, label in self.pins.items() if name not in gone}
        return self.model_copy(update={"pins": pins})

    def to_bytes(self) -> bytes:
        """As it is stored; nothing if nothing was decided."""
        if not (self.pins or self.keep or self.max_age or self.forget_after):
            return b""
        return encode(self.model_dump(exclude_defaults=True))

    @classmethod
    def from_bytes(cls, stored: bytes) -> AgentPolicy:
        """Read what ``to_bytes`` wrote. Raises ``ValueError``."""
        return cls.model_validate(decode(stored)) if stored else cls()


class RunSummary(NamedTuple):
    """As much of a run as it takes to judge its agent."""

    run_id: str
    status: RunStatus
    is_settled: bool
    created_at: datetime
    ended_at: datetime | None = None
    keep: int | None = None
    max_age: float | None = None

    @classmethod
    def of(cls, run: RunRecord | None) -> RunSummary | None:
        """The same of a whole record."""
        if run is None:
            return None
        times = run.created_at, run.ended_at
        return cls(run.run_id, run.status, run.is_settled, *times, run.keep, run.max_age)


@dataclass(frozen=True)
class AgentSnapshot:
    """An agent as a sweep saw it."""

    agent_id: str
    #: Changes whenever the agent does; empty if there is no such agent.
    seen: str = ""
    #: Its checkpoints, newest first.
    marks: list[CheckpointSummary] = field(default_factory=list)
    policy: AgentPolicy = field(default_factory=AgentPolicy)
    #: Is a run open, or does somebody hold the lease?
    is_busy: bool = False
    #: Is one of its runs the task that it is named after?
    is_named_by_task: bool = False
    #: The run that was added last.
    last_run: RunSummary | None = None
    #: No run that may go, see ``retention.old_runs``, ended before this; ``None``: there is none.
    oldest_end: datetime | None = None
    #: Where the log begins, and the sequence that the checkpoints stand at, in Redis.
    first: int = 0
    seq: int = 0
    #: Why it could not be looked at.
    damage: str = ""


@dataclass(frozen=True)
class PrunePlan:
    """What a sweep decided about an agent."""

    snapshot: AgentSnapshot
    #: The moment under which the sweep was told of it; ``None``: it was not told.
    due_at: int | None = None
    #: The ids of the checkpoints that go.
    drop: list[str] = field(default_factory=list)
    #: The records of runs go that ended by then (see ``retention.old_runs``); ``None``: none do.
    runs_before: datetime | None = None
    #: Does all of it go?
    forget: bool = False
    #: In how many seconds to look again, if nothing changes; ``None``: not at all.
    again: float | None = None
    #: In how many seconds to look again, if it has changed since it was seen.
    retry: float = 150.0


class PruneResult(NamedTuple):
    """What became of one agent that a sweep looked at."""

    agent_id: str
    #: How many checkpoints went, or would go.
    checkpoints: int = 0
    #: How many bytes were freed, as far as the store can tell.
    bytes: int = 0
    #: Did the whole agent go?
    forgotten: bool = False
    #: Of the checkpoints that went.
    ids: tuple[str, ...] = ()
    #: How many records of old runs went, or would go, of an agent that stays.
    runs: int = 0

    def and_then(self, other: PruneResult) -> PruneResult:
        """This, and what went of the same agent when it was looked at again."""
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
        """Did anything go?"""
        return bool(self.checkpoints or self.forgotten or self.runs)


@dataclass
class PruneReport:
    """What became of many agents."""

    #: How many were looked at.
    agents: int = 0
    #: How many lost something.
    pruned: int = 0
    #: How many went as a whole.
    forgotten: int = 0
    checkpoints: int = 0
    #: How many records of old runs went, of agents that stay.
    runs: int = 0
    bytes: int = 0
    #: Is that only what would go?
    dry_run: bool = False

    def add(self, one: PruneResult) -> None:
        """Count one agent."""
        self.agents += 1
        self.pruned += one.is_any
        self.forgotten += one.forgotten
        self.checkpoints += one.checkpoints
        self.runs += one.runs
        self.bytes += one.bytes

    def include(self, other: PruneReport) -> None:
        """Count what another one counted."""
        self.agents += other.agents
        self.pruned += other.pruned
        self.forgotten += other.forgotten
        self.checkpoints += other.checkpoints
        self.runs += other.runs
        self.bytes += other.bytes

    def __str__(self) -> str:
        would = "would go" if self.dry_run else "went"
        return (
            f"{self.checkpoints:,} checkpoints {would} of {self.pruned:,} agents, {self.forgotten:,} "
            f"agents as a whole, {self.runs:,} old runs, {self.bytes:,} bytes; "
            f"{self.agents:,} agents were looked at"
        )
