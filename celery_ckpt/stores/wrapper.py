"""A store around another one. It forwards every call, so that a subclass contains only its changes."""
# ruff: noqa: D102  (CheckpointStore documents these methods)

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.errors import CheckpointError, StoreError
from celery_ckpt.event_log import LogEntry
from celery_ckpt.records import (
    AgentActivity,
    AgentOutline,
    AgentPage,
    Change,
    CheckpointInfo,
    CurrentCall,
    Finding,
    Lease,
    MessagePage,
    RunOutline,
    RunRecord,
    RunStatus,
    Schedule,
    StartResult,
    Step,
)
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, PrunePlan, PruneResult
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, DEFAULT_REMEMBER, CheckpointStore
from celery_ckpt.usage import Usage


def given(**options: Any) -> dict[str, Any]:
    """Return the options that have a value. A store without an event log does not take those of it."""
    return {name: value for name, value in options.items() if value}


class WrapperStore(CheckpointStore):
    """Forwards every call to the wrapped store. A wrapper has the features of the store it wraps.

    The calls are written out, so that a type checker sees a complete store.
    """

    def __init__(self, inner: CheckpointStore) -> None:
        #: The wrapped store.
        self.inner = inner
        self.features = inner.features

    @property
    def max_checkpoint_bytes(self) -> int:
        """The limit of the wrapped store."""
        limit: int = getattr(self.inner, "max_checkpoint_bytes", DEFAULT_MAX_CHECKPOINT_BYTES)
        return limit

    @max_checkpoint_bytes.setter
    def max_checkpoint_bytes(self, limit: int) -> None:
        """Set it on the wrapped store."""
        self.inner.max_checkpoint_bytes = limit  # type: ignore[attr-defined]

    @property
    def event_log_limit(self) -> int:
        """The limit of the wrapped store."""
        return self.inner.event_log_limit

    @event_log_limit.setter
    def event_log_limit(self, limit: int) -> None:
        """Set it on the wrapped store."""
        self.inner.event_log_limit = limit

    @property
    def reads_encrypted(self) -> bool:
        """Whether the wrapped store returns encrypted records as they are."""
        return self.inner.reads_encrypted

    @reads_encrypted.setter
    def reads_encrypted(self, reads: bool) -> None:
        """Set it on the wrapped store."""
        self.inner.reads_encrypted = reads

    # -- checkpoints ---------------------------------------------------------------------------------

    def save(
        self,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        run: RunRecord | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        self.inner.save(checkpoint, lease, run=run, **given(log=log))

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        return self.inner.load_latest(agent_id)

    def load(self, checkpoint_id: str) -> Checkpoint | None:
        return self.inner.load(checkpoint_id)

    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        return self.inner.list(agent_id, limit=limit)

    def history(
        self, agent_id: str, *, limit: int | None = None, before: int | None = None
    ) -> builtins.list[CheckpointInfo]:
        return self.inner.history(agent_id, limit=limit, before=before)

    def messages(
        self, checkpoint_id: str, start: int = 0, stop: int | None = None
    ) -> MessagePage | None:
        return self.inner.messages(checkpoint_id, start, stop)

    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        return self.inner.remove(agent_id, checkpoint_ids)

    def prune(self, agent_id: str, keep: int) -> int:
        return self.inner.prune(agent_id, keep)

    def delete(self, agent_id: str, *, remember: float = DEFAULT_REMEMBER) -> int:
        return self.inner.delete(agent_id, remember=remember)

    def was_deleted(self, run_id: str) -> bool:
        return self.inner.was_deleted(run_id)

    def agents(self) -> Iterator[str]:
        return self.inner.agents()

    def page(
        self,
        status: RunStatus | str | None = None,
        *,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> AgentPage:
        return self.inner.page(status, prefix=prefix, limit=limit, after=after)

    def outline(self, agent_id: str) -> AgentOutline | None:
        return self.inner.outline(agent_id)

    # -- leases --------------------------------------------------------------------------------------

    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        return self.inner.acquire(agent_id, owner, ttl, over=over)

    def renew(self, lease: Lease, ttl: float, *, call: CurrentCall | None = None) -> Lease:
        return self.inner.renew(lease, ttl, **given(call=call))

    def renew_many(
        self, leases: Sequence[Lease], ttl: float, *, calls: Sequence[CurrentCall | None] = ()
    ) -> builtins.list[Lease | StoreError]:
        return self.inner.renew_many(leases, ttl, **given(calls=calls))

    def release(
        self,
        lease: Lease,
        *,
        run: RunRecord | None = None,
        due_in: float | None = None,
        log: Sequence[LogEntry] = (),
    ) -> bool:
        return self.inner.release(lease, run=run, due_in=due_in, **given(log=log))

    def holder(self, agent_id: str) -> Lease | None:
        return self.inner.holder(agent_id)

    # -- steps ---------------------------------------------------------------------------------------

    def record_step(
        self,
        step: Step,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        self.inner.record_step(step, lease, paid=paid, **given(log=log))

    def record_and_save(
        self,
        step: Step,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> CheckpointError | None:
        # By two calls of this store: a subclass may change either.
        return super().record_and_save(step, checkpoint, lease, paid=paid, log=log)

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        return self.inner.steps(agent_id, run_id)

    def drop_steps(
        self,
        agent_id: str,
        run_id: str,
        *,
        first: int = 0,
        last: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        return self.inner.drop_steps(agent_id, run_id, first=first, last=last, lease=lease)

    # -- runs ----------------------------------------------------------------------------------------

    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        return self.inner.add_run(run, due_in=due_in)

    def update_run(
        self, run: RunRecord, lease: Lease | None = None, *, log: Sequence[LogEntry] = ()
    ) -> None:
        self.inner.update_run(run, lease, **given(log=log))

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        return self.inner.run(agent_id, run_id)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        return self.inner.runs(agent_id)

    def last_run(self, agent_id: str) -> RunRecord | None:
        return self.inner.last_run(agent_id)

    def run_outlines(
        self, agent_id: str, *, limit: int | None = None, before: str | None = None
    ) -> builtins.list[RunOutline]:
        return self.inner.run_outlines(agent_id, limit=limit, before=before)

    def start_run(
        self,
        run: RunRecord,
        owner: str,
        ttl: float,
        *,
        over: Lease | None = None,
        recorded: bool = False,
        worker: str = "",
    ) -> StartResult:
        named = given(worker=worker)
        return self.inner.start_run(run, owner, ttl, over=over, recorded=recorded, **named)

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        return self.inner.settle_run(run, lease)

    def pass_turn(self, agent_id: str, run_id: str, waited: float) -> RunRecord | None:
        return self.inner.pass_turn(agent_id, run_id, waited)

    def cancel_run(
        self, agent_id: str, run_id: str, owner: str, ttl: float, *, log: Sequence[LogEntry] = ()
    ) -> Lease | None:
        return self.inner.cancel_run(agent_id, run_id, owner, ttl, **given(log=log))

    def activity(self, agent_id: str) -> AgentActivity:
        return self.inner.activity(agent_id)

    # -- the event log -------------------------------------------------------------------------------

    def event_log(
        self, agent_id: str, *, after: int | None = None, limit: int | None = None
    ) -> builtins.list[LogEntry]:
        return self.inner.event_log(agent_id, after=after, limit=limit)

    def note(self, agent_id: str, log: Sequence[LogEntry], *, copied: bool = False) -> bool:
        return self.inner.note(agent_id, log, **given(copied=copied))

    def follow(self, agent_id: str, seconds: float) -> int:
        return self.inner.follow(agent_id, seconds)

    def stream(self, lease: Lease, log: Sequence[LogEntry]) -> bool:
        return self.inner.stream(lease, log)

    # -- upkeep --------------------------------------------------------------------------------------

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        return self.inner.schedule(agent_id, after, on)

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        return self.inner.unschedule(due_times, on)

    def reschedule(
        self, due_times: Mapping[str, int], after: float, on: Schedule = Schedule.WATCHDOG
    ) -> dict[str, int]:
        return self.inner.reschedule(due_times, after, on)

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        return self.inner.claim_due(limit, hold, on)

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        return self.inner.count_due(on)

    def count_watchdogs(self, name: str, seconds: float) -> int:
        return self.inner.count_watchdogs(name, seconds)

    def policy(self, agent_id: str) -> AgentPolicy:
        return self.inner.policy(agent_id)

    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        return self.inner.set_policy(agent_id, before, after)

    def pin(self, checkpoint_id: str, label: str | None) -> bool:
        return self.inner.pin(checkpoint_id, label)

    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        return self.inner.snapshots(agent_ids)

    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        return self.inner.apply(plans)

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        return self.inner.rewrite(agent_id, change, lease)

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        return self.inner.findings(repair)

    def risks(self) -> builtins.list[str]:
        return self.inner.risks()

    def close(self) -> None:
        self.inner.close()
