"""Leases, steps and run records in files."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from celery_ckpt.clock import Clock
from celery_ckpt.errors import LeaseLost, RunNotFound
from celery_ckpt.names import checked_name
from celery_ckpt.records import AgentActivity, Lease, RunRecord, Schedule, StartResult, Step
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encoding import encoded, is_same
from celery_ckpt.stores.file.directory import Agent, Agents
from celery_ckpt.stores.file.schedule import Moments
from celery_ckpt.stores.file.steps import StepTable
from celery_ckpt.stores.file.transaction import FileDesk
from celery_ckpt.stores.rules import turns
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.usage import Usage


class FileLedger(CheckpointStore):
    """The part of the store that says who may write, and what was done."""

    max_checkpoint_bytes: int
    _agents: Agents
    _moments: dict[Schedule, Moments]
    _clock: Clock

    # -- leases --------------------------------------------------------------------------------------

    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        """See ``CheckpointStore``."""
        with self._agents.writing(agent_id) as agent:
            granted = agent.lease().granted(agent_id, owner, ttl, self._clock.now(), over)
            agent.set_lease(granted)
            return granted.lease(agent_id)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """See ``CheckpointStore``."""
        with self._agents.changing(lease.agent_id) as agent:
            if agent is None:
                raise LeaseLost(agent_id=lease.agent_id, token=lease.token)
            renewed = agent.lease().renewed(lease, ttl, self._clock.now())
            agent.set_lease(renewed)
            return renewed.lease(lease.agent_id)

    def release(
        self, lease: Lease, *, run: RunRecord | None = None, due_in: float | None = None
    ) -> bool:
        """See ``CheckpointStore``."""
        self._watch(lease.agent_id, due_in)
        with self._agents.changing(lease.agent_id) as agent:
            if agent is None or not agent.lease().is_(lease):
                return False
            desk = self._desk(agent)
            turns.refuse_unknown(desk, run)
            if run is not None:
                desk.put(turns.with_usage(desk, run))
            desk.lease = desk.lease.released()
            desk.write()
            return True

    def holder(self, agent_id: str) -> Lease | None:
        """See ``CheckpointStore``."""
        with self._agents.reading(agent_id) as agent:
            held = LeaseState() if agent is None else agent.lease()
        return held.lease(agent_id) if held.is_held(self._clock.now()) else None

    # -- steps ---------------------------------------------------------------------------------------

    def record_step(self, step: Step, lease: Lease | None = None, *, paid: Usage | None = None) -> None:
        """See ``CheckpointStore``."""
        value = encoded(step, self.max_checkpoint_bytes)
        with self._agents.writing(step.agent_id) as agent:
            steps = StepTable(agent)
            if not steps.has(step):
                agent.lease().refuse(step.agent_id, lease, self._clock.now())
                # Before the step: a process that dies between the two has paid for the call.
                before = self._paid(agent, step.run_id, paid)
                try:
                    steps.add(step, value)
                except OSError:
                    self._put_back(agent, before)
                    raise

    def _paid(self, agent: Agent, run_id: str, paid: Usage | None) -> RunRecord | None:
        """Raise the usage of a run; returns its record as it was."""
        if not paid:
            return None
        desk = self._desk(agent)
        before = desk.run(run_id)
        if turns.pay(desk, run_id, paid):
            desk.write()
        return before

    def _put_back(self, agent: Agent, before: RunRecord | None) -> None:
        if before is not None:
            desk = self._desk(agent)
            desk.put(before)
            with suppress(OSError):
                desk.write()

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._agents.reading(agent_id) as agent:
            return [] if agent is None else StepTable(agent).of(run_id)

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
        with self._agents.changing(agent_id) as agent:
            held = LeaseState() if agent is None else agent.lease()
            held.refuse(agent_id, lease, self._clock.now())
            return 0 if agent is None else StepTable(agent).drop(run_id, first, last)

    # -- runs ----------------------------------------------------------------------------------------

    def _desk(self, agent: Agent) -> FileDesk:
        return FileDesk(agent, self.max_checkpoint_bytes)

    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        """See ``CheckpointStore``."""
        encoded(run, self.max_checkpoint_bytes)
        self._watch(run.agent_id, due_in)
        with self._agents.writing(run.agent_id) as agent:
            desk = self._desk(agent)
            stored = desk.run(run.run_id)
            if stored is not None:
                return is_same(stored, run)
            desk.put(run)
            desk.write()
            return True

    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        encoded(run, self.max_checkpoint_bytes)
        with self._changing_run(run) as desk:
            desk.lease.refuse(run.agent_id, lease, self._clock.now())
            desk.put(turns.with_usage(desk, run))
            desk.write()

    @contextmanager
    def _changing_run(self, run: RunRecord) -> Iterator[FileDesk]:
        """The desk of a run that was added. Raises ``RunNotFound``."""
        with self._agents.changing(run.agent_id) as agent:
            if agent is None:
                raise RunNotFound(agent_id=run.agent_id, run_id=run.run_id)
            desk = self._desk(agent)
            turns.refuse_unknown(desk, run)
            yield desk

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._agents.reading(agent_id) as agent:
            return None if agent is None else self._desk(agent).run(run_id)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """See ``CheckpointStore``."""
        with self._agents.reading(agent_id) as agent:
            return [] if agent is None else self._desk(agent).runs()

    # -- whose turn it is ----------------------------------------------------------------------------

    def start_run(
        self, run: RunRecord, owner: str, ttl: float, *, over: Lease | None = None
    ) -> StartResult:
        """See ``CheckpointStore``."""
        due_at = self.schedule(run.agent_id, ttl)
        with self._agents.writing(run.agent_id) as agent:
            desk = self._desk(agent)
            started = turns.start(desk, run, owner, ttl, self._clock.now(), over)
            desk.write()
        return started.model_copy(update={"due_at": due_at})

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        """See ``CheckpointStore``."""
        with self._changing_run(run) as desk:
            # While nobody else can change the agent: no sweep can be done with it in between.
            self.schedule(run.agent_id, 0, Schedule.SWEEP)
            following = turns.settle(desk, run, lease, self._clock.now())
            desk.write()
            return following

    def cancel_run(self, agent_id: str, run_id: str, owner: str, ttl: float) -> Lease | None:
        """See ``CheckpointStore``."""
        with self._agents.changing(agent_id) as agent:
            if agent is None:
                raise RunNotFound(agent_id=agent_id, run_id=run_id)
            desk = self._desk(agent)
            lease = turns.cancel(desk, run_id, owner, ttl, self._clock.now())
            desk.write()
            return lease

    def activity(self, agent_id: str) -> AgentActivity:
        """See ``CheckpointStore``."""
        with self._agents.reading(agent_id) as agent:
            return (
                AgentActivity()
                if agent is None
                else turns.activity(self._desk(agent), self._clock.now())
            )

    def _watch(self, agent_id: str, after: float | None) -> None:
        if after is not None:
            self.schedule(agent_id, after)
