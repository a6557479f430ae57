"""Leases, steps, run records and whose turn it is, in memory."""

from __future__ import annotations

import builtins
import threading
from dataclasses import dataclass, field

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import Clock
from celery_ckpt.errors import AlreadyExists
from celery_ckpt.names import checked_name
from celery_ckpt.records import AgentActivity, Lease, RunRecord, Schedule, StartResult, Step
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encoding import encoded, is_same
from celery_ckpt.stores.rules import turns
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.usage import Usage


@dataclass
class MemoryAgent:
    """All there is of one agent; its runs are a ``turns.Desk``."""

    agent_id: str
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    steps: dict[tuple[str, str], Step] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    lease: LeaseState = field(default_factory=LeaseState)
    seq: int = 0
    active: str = ""
    policy: AgentPolicy = field(default_factory=AgentPolicy)
    #: Is a sweep sure to look at it soon?
    is_listed: bool = False

    def run(self, run_id: str) -> RunRecord | None:
        """See ``turns.Desk``."""
        return self.runs.get(run_id)

    def put(self, run: RunRecord) -> None:
        """See ``turns.Desk``."""
        self.runs[run.run_id] = run

    def open_runs(self) -> builtins.list[RunRecord]:
        """See ``turns.Desk``."""
        return [run for run in self.runs.values() if not run.is_settled]

    def progress(self) -> str:
        """See ``turns.Desk``."""
        return f"{self.seq}.{len(self.steps)}"

    def drop_steps_of(self, run_id: str) -> None:
        """See ``turns.Desk``."""
        self.steps = {key: step for key, step in self.steps.items() if step.run_id != run_id}


class MemoryLedger(CheckpointStore):
    """The part of the store that says who may write, and what was done."""

    max_checkpoint_bytes: int
    _clock: Clock
    _lock: threading.RLock
    _agents: dict[str, MemoryAgent]
    _moments: dict[Schedule, dict[str, int]]

    def _known(self, agent_id: str) -> MemoryAgent:
        """The agent, or a blank one that is not kept."""
        return self._agents.get(checked_name(agent_id)) or MemoryAgent(agent_id)

    def _writable(self, agent_id: str, lease: Lease | None) -> MemoryAgent:
        agent = self._known(agent_id)
        agent.lease.refuse(agent_id, lease, self._clock.now())
        return self._agents.setdefault(agent_id, agent)

    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._known(agent_id)
            agent.lease = agent.lease.granted(agent_id, owner, ttl, self._clock.now(), over)
            self._agents[agent_id] = agent
            return agent.lease.lease(agent_id)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._known(lease.agent_id)
            agent.lease = agent.lease.renewed(lease, ttl, self._clock.now())
            return agent.lease.lease(lease.agent_id)

    def release(
        self, lease: Lease, *, run: RunRecord | None = None, due_in: float | None = None
    ) -> bool:
        """See ``CheckpointStore``."""
        self._refuse_too_large(run)
        self._watch(lease.agent_id, due_in)
        with self._lock:
            agent = self._known(lease.agent_id)
            if not agent.lease.is_(lease):
                return False
            turns.refuse_unknown(agent, run)
            if run is not None:
                agent.put(turns.with_usage(agent, run))
            agent.lease = agent.lease.released()
            return True

    def holder(self, agent_id: str) -> Lease | None:
        """See ``CheckpointStore``."""
        with self._lock:
            lease = self._known(agent_id).lease
            return lease.lease(agent_id) if lease.is_held(self._clock.now()) else None

    def record_step(self, step: Step, lease: Lease | None = None, *, paid: Usage | None = None) -> None:
        """See ``CheckpointStore``."""
        encoded(step, self.max_checkpoint_bytes)
        with self._lock:
            stored = self._known(step.agent_id).steps.get((step.run_id, step.key))
            if stored is not None and not is_same(stored, step):
                raise AlreadyExists(what=f"Step {step.key!r}", agent_id=step.agent_id)
            if stored is None:
                agent = self._writable(step.agent_id, lease)
                agent.steps[step.run_id, step.key] = step
                turns.pay(agent, step.run_id, paid)

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._lock:
            return [s for s in self._known(agent_id).steps.values() if s.run_id == run_id]

    def drop_steps(
        self,
        agent_id: str,
        run_id: str,
        *,
        first: int = 0,
        last: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._lock:
            agent = self._known(agent_id)
            agent.lease.refuse(agent_id, lease, self._clock.now())
            gone = [
                key
                for key, step in agent.steps.items()
                if step.run_id == run_id
                and first <= step.iteration
                and (last is None or step.iteration <= last)
            ]
            for key in gone:
                del agent.steps[key]
            return len(gone)

    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        """See ``CheckpointStore``."""
        self._refuse_too_large(run)
        self._watch(run.agent_id, due_in)
        with self._lock:
            agent = self._agents.setdefault(run.agent_id, MemoryAgent(run.agent_id))
            return is_same(agent.runs.setdefault(run.run_id, run), run)

    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        self._refuse_too_large(run)
        with self._lock:
            agent = self._known(run.agent_id)
            turns.refuse_unknown(agent, run)
            agent.lease.refuse(run.agent_id, lease, self._clock.now())
            agent.put(turns.with_usage(agent, run))

    def _refuse_too_large(self, run: RunRecord | None) -> None:
        if run is not None:
            encoded(run, self.max_checkpoint_bytes)

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._lock:
            return self._known(agent_id).runs.get(run_id)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """See ``CheckpointStore``."""
        with self._lock:
            return list(self._known(agent_id).runs.values())

    def start_run(
        self, run: RunRecord, owner: str, ttl: float, *, over: Lease | None = None
    ) -> StartResult:
        """See ``CheckpointStore``."""
        self._refuse_too_large(run)
        with self._lock:
            agent = self._known(run.agent_id)
            due_at = self.schedule(run.agent_id, ttl)
            started = turns.start(agent, run, owner, ttl, self._clock.now(), over)
            self._agents[run.agent_id] = agent
            return started.model_copy(update={"due_at": due_at})

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        """See ``CheckpointStore``."""
        self._refuse_too_large(run)
        with self._lock:
            following = turns.settle(self._known(run.agent_id), run, lease, self._clock.now())
            self.schedule(run.agent_id, 0, Schedule.SWEEP)
            return following

    def cancel_run(self, agent_id: str, run_id: str, owner: str, ttl: float) -> Lease | None:
        """See ``CheckpointStore``."""
        with self._lock:
            return turns.cancel(self._known(agent_id), run_id, owner, ttl, self._clock.now())

    def activity(self, agent_id: str) -> AgentActivity:
        """See ``CheckpointStore``."""
        with self._lock:
            return turns.activity(self._known(agent_id), self._clock.now())

    def _watch(self, agent_id: str, after: float | None) -> None:
        if after is not None:
            self.schedule(agent_id, after)
