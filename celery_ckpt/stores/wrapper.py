"""A store around another one: everything is passed on, so that a subclass says only what it changes."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.records import (
    AgentActivity,
    Change,
    CheckpointInfo,
    Finding,
    Lease,
    RunRecord,
    Schedule,
    StartResult,
    Step,
)
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, PrunePlan, PruneResult
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, CheckpointStore
from celery_ckpt.usage import Usage


class WrapperStore(CheckpointStore):
    """Passes everything on to the store that it is around. See ``CheckpointStore`` for each method."""

    def __init__(self, inner: CheckpointStore) -> None:
        #: The store that keeps everything.
        self.inner = inner
        self.features = inner.features

    @property
    def max_checkpoint_bytes(self) -> int:
        """What is larger is refused: the limit of the store that this one is around."""
        limit: int = getattr(self.inner, "max_checkpoint_bytes", DEFAULT_MAX_CHECKPOINT_BYTES)
        return limit

    @max_checkpoint_bytes.setter
    def max_checkpoint_bytes(self, limit: int) -> None:
        """Change it there."""
        self.inner.max_checkpoint_bytes = limit  # type: ignore[attr-defined]

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
        self, checkpoint: Checkpoint, lease: Lease | None = None, *, run: RunRecord | None = None
    ) -> None:
        """Passed on."""
        self.inner.save(checkpoint, lease, run=run)

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        """Passed on."""
        return self.inner.load_latest(agent_id)

    def load(self, checkpoint_id: str) -> Checkpoint | None:
        """Passed on."""
        return self.inner.load(checkpoint_id)

    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        """Passed on."""
        return self.inner.list(agent_id, limit=limit)

    def history(self, agent_id: str) -> builtins.list[CheckpointInfo]:
        """Passed on."""
        return self.inner.history(agent_id)

    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        """Passed on."""
        return self.inner.remove(agent_id, checkpoint_ids)

    def prune(self, agent_id: str, keep: int) -> int:
        """Passed on."""
        return self.inner.prune(agent_id, keep)

    def delete(self, agent_id: str) -> int:
        """Passed on."""
        return self.inner.delete(agent_id)

    def agents(self) -> Iterator[str]:
        """Passed on."""
        return self.inner.agents()

    # -- leases --------------------------------------------------------------------------------------

    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        """Passed on."""
        return self.inner.acquire(agent_id, owner, ttl, over=over)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Passed on."""
        return self.inner.renew(lease, ttl)

    def release(
        self, lease: Lease, *, run: RunRecord | None = None, due_in: float | None = None
    ) -> bool:
        """Passed on."""
        return self.inner.release(lease, run=run, due_in=due_in)

    def holder(self, agent_id: str) -> Lease | None:
        """Passed on."""
        return self.inner.holder(agent_id)

    # -- steps ---------------------------------------------------------------------------------------

    def record_step(self, step: Step, lease: Lease | None = None, *, paid: Usage | None = None) -> None:
        """Passed on."""
        self.inner.record_step(step, lease, paid=paid)

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """Passed on."""
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
        """Passed on."""
        return self.inner.drop_steps(agent_id, run_id, first=first, last=last, lease=lease)

    # -- runs ----------------------------------------------------------------------------------------

    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        """Passed on."""
        return self.inner.add_run(run, due_in=due_in)

    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """Passed on."""
        self.inner.update_run(run, lease)

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """Passed on."""
        return self.inner.run(agent_id, run_id)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """Passed on."""
        return self.inner.runs(agent_id)

    def start_run(
        self, run: RunRecord, owner: str, ttl: float, *, over: Lease | None = None
    ) -> StartResult:
        """Passed on."""
        return self.inner.start_run(run, owner, ttl, over=over)

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        """Passed on."""
        return self.inner.settle_run(run, lease)

    def cancel_run(self, agent_id: str, run_id: str, owner: str, ttl: float) -> Lease | None:
        """Passed on."""
        return self.inner.cancel_run(agent_id, run_id, owner, ttl)

    def activity(self, agent_id: str) -> AgentActivity:
        """Passed on."""
        return self.inner.activity(agent_id)

    # -- upkeep --------------------------------------------------------------------------------------

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        """Passed on."""
        return self.inner.schedule(agent_id, after, on)

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        """Passed on."""
        return self.inner.unschedule(due_times, on)

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """Passed on."""
        return self.inner.claim_due(limit, hold, on)

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        """Passed on."""
        return self.inner.count_due(on)

    def policy(self, agent_id: str) -> AgentPolicy:
        """Passed on."""
        return self.inner.policy(agent_id)

    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        """Passed on."""
        return self.inner.set_policy(agent_id, before, after)

    def pin(self, checkpoint_id: str, label: str | None) -> bool:
        """Passed on."""
        return self.inner.pin(checkpoint_id, label)

    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        """Passed on."""
        return self.inner.snapshots(agent_ids)

    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        """Passed on."""
        return self.inner.apply(plans)

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        """Passed on."""
        return self.inner.rewrite(agent_id, change, lease)

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        """Passed on."""
        return self.inner.findings(repair)

    def risks(self) -> builtins.list[str]:
        """Passed on."""
        return self.inner.risks()

    def close(self) -> None:
        """Passed on."""
        self.inner.close()
