"""What a watchdog and a sweep look at, and what a sweep does, in files."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

from celery_ckpt.clock import microseconds
from celery_ckpt.errors import CheckpointError, StoreDamaged
from celery_ckpt.names import checked_name
from celery_ckpt.records import Finding, Schedule
from celery_ckpt.retention.policy import old_runs, oldest_end
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, PrunePlan, PruneResult, RunSummary
from celery_ckpt.stores.file.directory import Agent
from celery_ckpt.stores.file.doctor import findings_of
from celery_ckpt.stores.file.steps import StepTable
from celery_ckpt.stores.file.trash import FileDropping
from celery_ckpt.stores.log.marks import marks
from celery_ckpt.stores.rules.pruning import apply, damaged, seen_of


class FileSweeps(FileDropping):
    """The part of the store that knows when to look at agents, and tidies up."""

    # -- moments -------------------------------------------------------------------------------------

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        return self._moments[on].set(checked_name(agent_id), self._now(), after)

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        return sum(self._moments[on].remove(name, due_at) for name, due_at in due_times.items())

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """See ``CheckpointStore``."""
        due_times, now = self._moments[on], self._now()
        held = ((name, due_times.move(name, at, now, hold)) for name, at in due_times.come(now))
        return list(islice(((name, at) for name, at in held if at is not None), limit))

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        return sum(1 for _ in self._moments[on].come(self._now()))

    def _now(self) -> int:
        return microseconds(self._clock.now())

    def _list(self, agent: Agent) -> None:
        """Have a sweep look at the agent soon; until it is done, no save has to say so again."""
        if not agent.listed.exists():
            self.schedule(agent.agent_id, 0, Schedule.SWEEP)
            agent.listed.touch(mode=0o600)

    # -- sweeping ------------------------------------------------------------------------------------

    def policy(self, agent_id: str) -> AgentPolicy:
        """See ``CheckpointStore``."""
        with self._agents.reading(agent_id) as agent:
            return AgentPolicy() if agent is None else agent.policy()

    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        """See ``CheckpointStore``."""
        with self._agents.changing(agent_id) as agent:
            if agent is None or agent.policy() != before:
                return False
            self.schedule(agent_id, 0, Schedule.SWEEP)
            agent.set_policy(after)
            return True

    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        """See ``CheckpointStore``."""
        return [self._sight(agent_id) for agent_id in agent_ids]

    def _sight(self, agent_id: str) -> AgentSnapshot:
        try:
            with self._agents.reading(agent_id) as agent:
                return _Broom(self, agent_id, agent).snapshot()
        except CheckpointError as error:
            return damaged(agent_id, error)

    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        """See ``CheckpointStore``."""
        return [self._carry_out(plan) for plan in plans]

    def _carry_out(self, plan: PrunePlan) -> PruneResult:
        agent_id = plan.snapshot.agent_id
        try:
            with self._agents.changing(agent_id) as agent:
                pruned = apply(_Broom(self, agent_id, agent), plan)
        except StoreDamaged:
            if not plan.snapshot.damage:
                raise
            # Not even its name can be read; it has its next moment all the same.
            pruned = apply(_Broom(self, agent_id, None), plan)
        self._tidy_after(pruned)
        return pruned

    def _tidy_after(self, pruned: PruneResult) -> None:
        """Drop what lies elsewhere than in the agent's directory."""
        self._unregister(pruned.agent_id, list(pruned.ids))
        if pruned.forgotten:
            self._empty_trash()

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        """See ``CheckpointStore``."""
        return findings_of(self, repair)


class _Broom:
    """A ``sweeps.Broom``. Its caller holds the agent's lock."""

    def __init__(self, store: FileSweeps, agent_id: str, agent: Agent | None) -> None:
        self._store, self._agent_id, self._agent = store, agent_id, agent

    def snapshot(self) -> AgentSnapshot:
        """See ``sweeps.Broom``."""
        agent, agent_id = self._agent, self._agent_id
        if agent is None:
            return AgentSnapshot(agent_id)
        desk, policy, lease = self._store._desk(agent), agent.policy(), agent.lease()
        runs, open_runs = desk.runs(), desk.open_runs()
        counts = agent.journal.seq, len(StepTable(agent)), len(runs), len(open_runs)
        return AgentSnapshot(
            agent_id,
            seen_of(*counts, lease, policy),
            marks(agent_id, agent.journal.lines(), policy),
            policy,
            bool(open_runs) or lease.is_held(self._store._clock.now()),
            any(run.run_id == agent_id for run in runs),
            RunSummary.of(runs[-1] if runs else None),
            oldest_end(agent_id, runs),
        )

    def remove(self, checkpoint_ids: builtins.list[str]) -> int:
        """See ``sweeps.Broom``."""
        assert self._agent is not None
        before = self._size()
        self._store._remove(self._agent, checkpoint_ids)
        return max(0, before - self._size())

    def forget_runs(self, before: datetime) -> tuple[int, int]:
        """See ``sweeps.Broom``."""
        assert self._agent is not None
        size, desk = self._size(), self._store._desk(self._agent)
        gone = old_runs(self._agent_id, desk.runs(), before)
        desk.forget([run.run_id for run in gone])
        return len(gone), max(0, size - self._size())

    def forget(self) -> int:
        """See ``sweeps.Broom``."""
        assert self._agent is not None
        size = self._size()
        self._store._move_to_trash(self._agent)
        return size

    def _size(self) -> int:
        assert self._agent is not None
        return sum(path.stat().st_size for path in self._agent.directory.iterdir())

    def unlist(self) -> None:
        """See ``sweeps.Broom``."""
        if self._agent is not None:
            self._agent.listed.unlink(missing_ok=True)

    def move(self, due_at: int, after: float | None) -> None:
        """See ``sweeps.Broom``."""
        due_times = self._store._moments[Schedule.SWEEP]
        if after is None:
            due_times.remove(self._agent_id, due_at)
        else:
            due_times.move(self._agent_id, due_at, self._store._now(), after)
