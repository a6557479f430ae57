"""What a store keeps besides checkpoints: leases, steps and runs; and what it returns about agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PlainSerializer, PlainValidator

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
from celery_ckpt.errors import StoreError
from celery_ckpt.event_log import LogEntry
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.messages import Message
from celery_ckpt.usage import Usage

StepKey = Annotated[str, named("A step's key")]
Paid = Annotated[Usage, PlainValidator(lambda value: value), PlainSerializer(Usage.to_dict)]


class Lease(Value):
    """The right to write for an agent, for a limited time.

    The token only grows; a lease with an older token is refused. The nonce distinguishes two leases
    with the same token, which a failover of the store can produce.
    """

    agent_id: AgentId
    token: Annotated[int, Field(ge=1)]
    nonce: str
    owner: str
    #: By the store's clock. An expired lease stays valid until a newer one is issued.
    expires_at: Timestamp


class Step(Value):
    """A call whose result is recorded, so that a later attempt replays it instead of calling again."""

    agent_id: AgentId
    run_id: RunId
    #: The iteration it belongs to; 0 is before the loop.
    iteration: Count = 0
    #: Unique in its run: made of the tool call's id, of the key that the caller has supplied, or of the
    #: call's name and arguments.
    key: StepKey
    #: What was called, for people.
    name: str = ""
    #: The position among the calls of that name in its iteration, from 0; ``None``: a parallel call.
    place: Count | None = None
    value: Annotated[Any, kept_exactly("value")] = None
    #: What the call and all calls inside it have used: a replay adds it again.
    usage: UsedSoFar = Usage()


class RunStatus(StrEnum):
    """The status of a run."""

    QUEUED = "queued"
    BLOCKED = "blocked"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if the run has ended."""
        return self in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED)


class RunOutline(Value):
    """One Celery task working for an agent, over all its attempts, without its message and its result.

    The fields that can be long, and that few readers need, are those that ``RunRecord`` adds. Stores
    write them last, so that a reader of the outline need not read them.
    """

    agent_id: AgentId
    run_id: RunId
    #: The Celery task's name.
    task: str = ""
    status: RunStatus = RunStatus.QUEUED
    #: How often a worker began it.
    attempts: Count = 0
    retries: Count = 0
    #: How many of its last attempts in a row died without recording anything.
    stalled: Count = 0
    #: The state of the agent's history when the current attempt began; only stores read it.
    progress: str = ""
    #: The broker's name for the message of the current attempt.
    delivery: str = ""
    #: The trace context of the current attempt, a W3C ``traceparent``; empty without telemetry.
    trace: Annotated[str, Field(max_length=512)] = ""
    #: True once Celery has the outcome. Until then, a run that has ended is open.
    delivered: bool = False
    #: When it may have its turn at the earliest, and until when it may begin. Both apply only before
    #: its first attempt.
    eta: Timestamp | None = None
    expires_at: Timestamp | None = None
    #: True if its turn was given to a younger run, because no worker had begun it. Until it is
    #: delivered, it does not get another turn.
    passed_over: bool = False
    created_at: Timestamp
    #: When it ended; ``None``: it has not, or the record does not say.
    ended_at: Timestamp | None = None
    #: The retention limits of its task, see ``AgentTask``; ``None``: the limits of the settings.
    keep: Annotated[int, Field(ge=1)] | None = None
    max_age: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    #: What its recorded calls have used, over all attempts. Only ``record_step`` raises it.
    usage: UsedSoFar = Usage()
    error: str | None = None

    @property
    def counts_as_ended_at(self) -> datetime:
        """When the run ended, or was created if the record does not say when it ended."""
        return self.ended_at or self.created_at

    @property
    def is_settled(self) -> bool:
        """True if the run has ended and Celery has its outcome."""
        return self.status.is_final and self.delivered

    def may_have_turn(self, now: datetime) -> bool:
        """True if the run is due: it has not ended, nor was it passed over, and now is its time."""
        if self.status.is_final or self.passed_over:
            return False
        is_late = self.expires_at is not None and self.expires_at <= now
        is_early = self.eta is not None and self.eta > now
        return self.attempts > 0 or not (is_late or is_early)


#: About how many open runs ``AgentActivity`` has at most.
MANY_RUNS = 200


class RunRecord(RunOutline):
    """One Celery task working for an agent, over all its attempts, with its message and its result."""

    #: What is needed to publish the task again.
    envelope: Annotated[dict[str, Any], kept_exactly("envelope")] = Field(default_factory=dict)
    result: Annotated[Any, kept_exactly("result")] = None

    @property
    def has_envelope(self) -> bool:
        """True if the run can be published again. Unlike ``bool(run.envelope)``, it copies nothing."""
        return bool(self.__dict__["envelope"])

    @property
    def outline(self) -> RunOutline:
        """The record without envelope and result."""
        own = self.__dict__
        return RunOutline.model_construct(**{name: own[name] for name in RunOutline.model_fields})


class StartResult(Value):
    """What ``start_run`` returns: the run as it is now and, if an attempt may start, a lease.

    Without a lease, the run is settled or deleted, or it waits for its turn.
    """

    run: RunRecord
    lease: Lease | None = None
    #: An older run of the agent. It has the turn now, and must be published.
    next: RunRecord | None = None
    #: True if the run was deleted with its agent (see ``CheckpointStore.delete``). The store has no
    #: record of it; ``run`` is what a record of it would be.
    is_deleted: bool = False
    #: When the watchdog checks the agent, unless it is rescheduled (see ``unschedule``).
    due_at: int = 0
    #: The trace context of the attempt before, if an attempt may start.
    trace_before: str = ""


#: How a call was made: by ``run.llm``, ``run.tool`` or ``run.tools``, or ``run.step``.
CallKind = Literal["llm", "tool", "step"]


class CurrentCall(Value):
    """The call that an attempt was making when it renewed its lease last."""

    kind: CallKind
    name: str
    began_at: Timestamp


class AgentActivity(Value):
    """The runs and the lease of an agent: what the watchdog needs."""

    #: The run whose turn it is, from its first attempt, or since it was given the turn, until it is
    #: settled.
    active: RunId | None = None
    #: Open runs in the order in which they were sent, about ``MANY_RUNS`` at most: the active one, the
    #: first ones in line, and some that are not in line (``eta``, expired, passed over, ended).
    open: list[RunRecord] = Field(default_factory=list)
    #: How many runs are open.
    count: Count = 0
    #: The unexpired lease, if there is one, and how long it is valid by the store's clock.
    holder: Lease | None = None
    seconds_left: float = 0.0
    #: What the holder was calling when it renewed its lease last; ``None``: nothing, or not known.
    call: CurrentCall | None = None


class CheckpointInfo(Value):
    """A checkpoint without its messages and its state."""

    id: CheckpointId
    #: The store's own order; it only grows within an agent.
    seq: int
    iteration: int
    created_at: Timestamp
    event: CheckpointEvent | None = None
    run_id: RunId | None = None
    metadata: Metadata = Field(default_factory=dict)
    #: How many messages its conversation has.
    messages: Count
    #: The label of its pin; a sweep never removes a pinned checkpoint.
    pin: str | None = None


#: The status of an agent that never had a run, where a text is needed. In an outline it is ``None``.
IDLE = "idle"
#: What an encrypted text begins with where only a text can be stored.
TEXT_TAG = "ckpt:encrypted "
#: How many characters of an error an outline of an agent has at most.
_LONGEST_ERROR = 1000


def shortened(error: str | None) -> str | None:
    """Return an error as an outline of an agent shows it. An encrypted one cannot be cut."""
    if error is None or len(error) <= _LONGEST_ERROR or error.startswith(TEXT_TAG):
        return error
    return f"{error[: _LONGEST_ERROR - 1]}…"


class AgentOutline(Value):
    """An agent in one row: its active run, or else its last one, and its latest checkpoint."""

    agent_id: str
    #: The status of its active run, or of the last one; ``None``: it never had a run.
    status: RunStatus | None = None
    run_id: str | None = None
    task: str = ""
    attempts: int = 0
    retries: int = 0
    #: How many other runs of the agent are open: they are behind this one.
    blocked: int = 0
    #: The process that has its lease.
    owner: str | None = None
    #: What that process was calling when it renewed the lease last.
    call: CurrentCall | None = None
    #: The error of that run; a long one is cut.
    error: str | None = None
    #: The usage of the recorded calls of that run.
    usage: Annotated[Usage, PlainValidator(lambda value: value), PlainSerializer(Usage.to_dict)] = (
        Usage()
    )
    #: The iteration of its latest checkpoint.
    iteration: int | None = None
    checkpointed_at: datetime | None = None
    checkpoints: int = 0
    #: When a run was last added, started, released, ended, settled or cancelled, or else when the agent
    #: was created; by the store's clock.
    changed_at: datetime | None = None


class AgentPage(NamedTuple):
    """Some agents, the most recently changed first (see ``CheckpointStore.page``)."""

    agents: list[AgentOutline]
    #: Continues with the next page; ``None``: there is none.
    after: str | None
    #: For each of the agents, what continues after it.
    cursors: list[str]
    #: The agents that should be on this page and cannot be read, and why. They are not in ``agents``.
    unreadable: dict[str, StoreError]


class MessagePage(NamedTuple):
    """Some messages of a checkpoint's conversation, in order."""

    agent_id: str
    checkpoint_id: str
    #: How many messages the conversation has.
    total: int
    #: The number of the first message of the page, counted from 0.
    start: int
    messages: list[Message]


class Schedule(StrEnum):
    """What makes an agent due: the two schedules of a store. The values are stored."""

    #: The watchdog requeues the runs of dead workers.
    WATCHDOG = "watchdog"
    #: A sweep deletes what the retention policy no longer keeps.
    SWEEP = "sweep"


@dataclass(frozen=True)
class AgentContents:
    """Everything that an agent has, except its lease and its policy."""

    #: Oldest first.
    checkpoints: list[Checkpoint]
    #: Of all runs, in the order in which they were recorded.
    steps: list[Step]
    #: In the order in which they were sent.
    runs: list[RunRecord]
    #: The event log without its live part, in order. Entries may be left out.
    log: list[LogEntry] = field(default_factory=list)


#: Returns the new contents of an agent, or ``None`` to leave the agent as it is.
Change = Callable[[AgentContents], AgentContents | None]


@dataclass(frozen=True)
class Finding:
    """A leftover, a damaged part or a risk that ``doctor`` found in a store."""

    #: ``risk``: the configuration can lose work; ``left over`` by a crash; ``not listed``: missing
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
