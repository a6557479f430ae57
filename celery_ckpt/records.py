"""What a store keeps besides checkpoints: leases, steps, runs, and the outlines of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from celery_ckpt.checkpoint import (
    AgentId,
    Checkpoint,
    CheckpointId,
    Count,
    Metadata,
    RunId,
    Timestamp,
    UsedSoFar,
    Value,
    hand_out_copies,
    kept_exactly,
    named,
)
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.usage import Usage

StepKey = Annotated[str, named("A step's key")]


class Lease(Value):
    """The right to write for an agent, for a while.

    The token only grows; whoever has an older one is fenced off. The nonce tells two leases apart
    that carry the same token, which a failover of the store can bring about.
    """

    agent_id: AgentId
    token: Annotated[int, Field(ge=1)]
    nonce: str
    owner: str
    #: By the store's clock. The end alone does not fence: only a newer lease does.
    expires_at: Timestamp


class Step(Value):
    """A call whose result is recorded, so that a later attempt replays it instead of calling."""

    agent_id: AgentId
    run_id: RunId
    #: The iteration it belongs to; 0 is before the loop.
    iteration: Count = 0
    #: Unique in its run: the tool call's id, or what the call's name and arguments make.
    key: StepKey
    #: What was called, for people.
    name: str = ""
    #: Which call of that name in its iteration it is, from 0; ``None``: it was made beside others.
    place: Count | None = None
    value: Annotated[Any, kept_exactly("value")] = None
    #: What the call, and all calls inside of it, have used: a replay adds it again.
    usage: UsedSoFar = Usage()


class RunStatus(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    BLOCKED = "blocked"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Has the run ended for good?"""
        return self in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED)


class RunRecord(Value):
    """One Celery task working for an agent, over all its attempts."""

    agent_id: AgentId
    run_id: RunId
    #: The Celery task's name.
    task: str = ""
    status: RunStatus = RunStatus.QUEUED
    #: How often a worker began it.
    attempts: Count = 0
    retries: Count = 0
    #: How many of its last attempts died one after the other without recording anything.
    stalled: Count = 0
    #: How far the agent's history was when the present attempt began; only stores read it.
    progress: str = ""
    #: The broker's name for the message that is being worked on.
    delivery: str = ""
    #: Does Celery have the outcome? Until then a finished run stays open.
    delivered: bool = False
    #: What it takes to send the task again.
    envelope: Annotated[dict[str, Any], kept_exactly("envelope")] = Field(default_factory=dict)
    result: Annotated[Any, kept_exactly("result")] = None
    error: str | None = None
    created_at: Timestamp
    #: When its outcome was known; ``None``: it has none, or an earlier version wrote it.
    ended_at: Timestamp | None = None
    #: What its task wants kept of the agent, see ``AgentTask``; ``None``: as the settings say.
    keep: Annotated[int, Field(ge=1)] | None = None
    max_age: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    #: What its recorded calls were paid for. A counter of the store's: only ``record_step`` raises it.
    usage: UsedSoFar = Usage()

    @property
    def has_envelope(self) -> bool:
        """Is it known how to send it again? Unlike ``bool(run.envelope)``, it copies nothing."""
        return bool(self.__dict__["envelope"])

    @property
    def over_since(self) -> datetime:
        """When it ended; of a record of an earlier version, which does not say, when it was sent."""
        return self.ended_at or self.created_at

    @property
    def is_settled(self) -> bool:
        """Is there nothing left to do for it?"""
        return self.status.is_final and self.delivered


class StartResult(Value):
    """What became of a delivery: the run as it is now and, if it may be worked on, a lease.

    Without a lease the run is settled, or it waits for its turn.
    """

    run: RunRecord
    lease: Lease | None = None
    #: When a watchdog will look at the agent, unless another moment is set (see ``unschedule``).
    due_at: int = 0


class AgentActivity(Value):
    """Where an agent stands: what a watchdog has to know."""

    #: The run whose turn it is, from its first attempt until it is settled.
    active: RunId | None = None
    #: All runs that are not settled, in the order in which they were added.
    open: list[RunRecord] = Field(default_factory=list)
    #: The unexpired lease, if somebody holds one, and how long it has left by the store's clock.
    holder: Lease | None = None
    seconds_left: float = 0.0


class CheckpointInfo(Value):
    """A checkpoint without its messages and its state: enough to list it and to judge its age."""

    id: CheckpointId
    #: The store's own order; it only grows within an agent.
    seq: int
    iteration: int
    created_at: Timestamp
    event: CheckpointEvent | None = None
    run_id: RunId | None = None
    metadata: Metadata = Field(default_factory=dict)
    #: The label by which it is pinned: then no sweep drops it.
    pin: str | None = None


class Schedule(StrEnum):
    """What makes an agent due: the two schedules of a store. The values are stored."""

    #: The watchdog requeues the runs of dead workers.
    WATCHDOG = "due"
    #: A sweep deletes what the retention policy no longer keeps.
    SWEEP = "sweep"


@dataclass(frozen=True)
class AgentContents:
    """Everything that an agent has, except its lease and its policy."""

    #: Oldest first.
    checkpoints: list[Checkpoint]
    #: Of all runs, in the order in which they were recorded.
    steps: list[Step]
    #: In the order in which they were added.
    runs: list[RunRecord]


#: Returns the new contents of an agent, or ``None`` to leave the agent as it is.
Change = Callable[[AgentContents], AgentContents | None]


@dataclass(frozen=True)
class Finding:
    """A leftover, a damage or a risk that ``doctor`` found in a store."""

    #: ``risk``: the configuration can lose work; ``left over``: by a crash; ``not listed``: missing
    #: from an index; ``damaged``.
    kind: str
    #: The agent, key or file.
    subject: str
    what: str
    remedy: str
    can_repair: bool = False
    repaired: bool = False


hand_out_copies(Step, "value")
hand_out_copies(RunRecord, "envelope", "result")
hand_out_copies(CheckpointInfo, "metadata")
