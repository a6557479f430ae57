"""What a watchdog and a sweep look at, and what a sweep does, in memory."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import microseconds
from celery_ckpt.names import checked_name
from celery_ckpt.records import Finding, Schedule
from celery_ckpt.retention.policy import old_runs, oldest_end
from celery_ckpt.retention.report import (
    PIN,
    AgentPolicy,
    AgentSnapshot,
    CheckpointSummary,
    PrunePlan,
    PruneResult,
    RunSummary,
)
from celery_ckpt.stores.findings import moment_for_nobody
from celery_ckpt.stores.memory.ledger import MemoryLedger
from celery_ckpt.stores.rules.pruning import apply, seen_of


class MemorySweeps(MemoryLedger):
    """The part of the store that knows when to look at agents, and tidies up."""

    _by_id: dict[str, Checkpoint]

    # -- moments -------------------------------------------------------------------------------------

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        with self._lock:
            due_at = microseconds(self._clock.now()) + round(after * 1_000_000)
            if self._moments[on].get(checked_name(agent_id)) == due_at:
                due_at -= 1
            self._moments[on][agent_id] = due_at
            return due_at

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        with self._lock:
            known = self._moments[on]
            over = [name for name, due_at in due_times.items() if known.get(name) == due_at]
            for name in over:
                del known[name]
            return len(over)

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """See ``CheckpointStore``."""
        with self._lock:
            come = self._come(on)[:limit]
            return [(agent_id, self.schedule(agent_id, hold, on)) for agent_id in come]

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        with self._lock:
            return len(self._come(on))

    def _come(self, on: Schedule) -> builtins.list[str]:
        now = microseconds(self._clock.now())
        return [agent_id for agent_id, due_at in self._moments[on].items() if due_at <= now]

    # -- sweeping ------------------------------------------------------------------------------------

    def policy(self, agent_id: str) -> AgentPolicy:
        """See ``CheckpointStore``."""
        with self._lock:
            return self._known(agent_id).policy

    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._agents.get(checked_name(agent_id))
            if agent is None or agent.policy != before:
                return False
            self.schedule(agent_id, 0, Schedule.SWEEP)
            agent.policy = after
            return True

    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        """See ``CheckpointStore``."""
        with self._lock:
            return [_Broom(self, agent_id).snapshot() for agent_id in agent_ids]

    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        """See ``CheckpointStore``."""
        with self._lock:
            return [apply(_Broom(self, one.snapshot.agent_id), one) for one in plans]

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        """See ``CheckpointStore``."""
        with self._lock:
            gone = [
                (on, name)
                for on, due_times in self._moments.items()
                for name in due_times
                if name not in self._agents
            ]
            for on, name in gone if repair else ():
                del self._moments[on][name]
        for on, name in gone:
            yield moment_for_nobody(name, on, repair)


class _Broom:
    """A ``sweeps.Broom``. Its caller holds the lock."""

    def __init__(self, store: MemorySweeps, agent_id: str) -> None:
        self._store, self._agent_id = store, agent_id
        self._agent = store._known(agent_id)

    def snapshot(self) -> AgentSnapshot:
        """See ``sweeps.Broom``."""
        agent, agent_id = self._agent, self._agent_id
        if agent_id not in self._store._agents:
            return AgentSnapshot(agent_id)
        runs, policy, lease = list(agent.runs.values()), agent.policy, agent.lease
        open_runs = agent.open_runs()
        return AgentSnapshot(
            agent_id,
            seen_of(agent.seq, len(agent.steps), len(runs), len(open_runs), lease, policy),
            [_mark(seq, agent.checkpoints[seq], policy) for seq in sorted(agent.checkpoints)[::-1]],
            policy,
            is_busy=bool(open_runs) or lease.is_held(self._store._clock.now()),
            is_named_by_task=agent_id in agent.runs,
            last_run=RunSummary.of(runs[-1] if runs else None),
            oldest_end=oldest_end(agent_id, runs),
        )

    def remove(self, checkpoint_ids: builtins.list[str]) -> int:
        """See ``sweeps.Broom``."""
        self._store.remove(self._agent_id, checkpoint_ids)
        return 0

    def forget_runs(self, before: datetime) -> tuple[int, int]:
        """See ``sweeps.Broom``."""
        gone = old_runs(self._agent_id, list(self._agent.runs.values()), before)
        for run in gone:
            self._agent.drop_steps_of(run.run_id)
            del self._agent.runs[run.run_id]
        return len(gone), 0

    def forget(self) -> int:
        """See ``sweeps.Broom``."""
        self._store.delete(self._agent_id)
        return 0

    def unlist(self) -> None:
        """See ``sweeps.Broom``."""
        self._agent.is_listed = False

    def move(self, due_at: int, after: float | None) -> None:
        """See ``sweeps.Broom``."""
        if self._store.unschedule({self._agent_id: due_at}, Schedule.SWEEP) and after is not None:
            self._store.schedule(self._agent_id, after, Schedule.SWEEP)


def _mark(seq: int, checkpoint: Checkpoint, policy: AgentPolicy) -> CheckpointSummary:
    pin = policy.label_of(checkpoint.id, checkpoint.metadata.get(PIN))
    return CheckpointSummary(checkpoint.id, seq, microseconds(checkpoint.created_at), pin)
