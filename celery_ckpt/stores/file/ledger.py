"""Leases, steps and run records in files."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from celery_ckpt.clock import Clock
from celery_ckpt.errors import AlreadyExists, LeaseLost, RunNotFound
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease, RunRecord, Step
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.file.agents import Agent, Agents
from celery_ckpt.stores.file.table import Table
from celery_ckpt.stores.leases import LeaseState
from celery_ckpt.stores.limits import decoded_run, decoded_step, encoded, is_same


class FileLedger(CheckpointStore):
    """The part of the store that says who may write, and what was done."""

    max_checkpoint_bytes: int
    _agents: Agents
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

    def release(self, lease: Lease) -> bool:
        """See ``CheckpointStore``."""
        with self._agents.changing(lease.agent_id) as agent:
            if agent is None or not agent.lease().is_(lease):
                return False
            agent.set_lease(agent.lease().released())
            return True

    def holder(self, agent_id: str) -> Lease | None:
        """See ``CheckpointStore``."""
        with self._agents.reading(agent_id) as agent:
            held = LeaseState() if agent is None else agent.lease()
        return held.lease(agent_id) if held.is_held(self._clock.now()) else None

    # -- steps ---------------------------------------------------------------------------------------

    def record_step(self, step: Step, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        value = encoded(step, self.max_checkpoint_bytes)
        with self._agents.writing(step.agent_id) as agent:
            table = _steps(agent)
            key = _step_key(step.run_id, step.key)
            if (stored := table.values.get(key)) is not None:
                if not is_same(decoded_step(step.agent_id, step.run_id, stored), step):
                    raise AlreadyExists(what=f"Step {step.key!r}", agent_id=step.agent_id)
                return
            agent.lease().refuse(step.agent_id, lease, self._clock.now())
            table.put(key, value)

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._agents.reading(agent_id) as agent:
            return [] if agent is None else [step for _, step in _steps_of(agent, run_id)]

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
            if agent is None:
                return 0
            gone = [
                key
                for key, step in _steps_of(agent, run_id)
                if first <= step.iteration and (last is None or step.iteration <= last)
            ]
            _steps(agent).drop(gone)
            return len(gone)

    # -- runs ----------------------------------------------------------------------------------------

    def add_run(self, run: RunRecord) -> bool:
        """See ``CheckpointStore``."""
        record = encoded(run, self.max_checkpoint_bytes)
        with self._agents.writing(run.agent_id) as agent:
            table = _runs(agent)
            if (stored := table.values.get(run.run_id)) is not None:
                return is_same(decoded_run(run.agent_id, run.run_id, stored), run)
            table.put(run.run_id, record)
            return True

    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        record = encoded(run, self.max_checkpoint_bytes)
        with self._agents.changing(run.agent_id) as agent:
            if agent is None or run.run_id not in _runs(agent).values:
                raise RunNotFound(agent_id=run.agent_id, run_id=run.run_id)
            agent.lease().refuse(run.agent_id, lease, self._clock.now())
            _runs(agent).put(run.run_id, record)

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        return next((run for run in self.runs(agent_id) if run.run_id == run_id), None)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """See ``CheckpointStore``."""
        with self._agents.reading(agent_id) as agent:
            stored = {} if agent is None else _runs(agent).values
        return [decoded_run(agent_id, run_id, record) for run_id, record in stored.items()]


def _steps(agent: Agent) -> Table:
    return Table(agent.directory / "steps")


def _runs(agent: Agent) -> Table:
    return Table(agent.directory / "runs")


def _step_key(run_id: str, key: str) -> str:
    # The length keeps run "a b" with key "c" apart from run "a" with key "b c".
    return f"{len(run_id)} {run_id} {key}"


def _steps_of(agent: Agent, run_id: str) -> Iterator[tuple[str, Step]]:
    prefix = _step_key(run_id, "")
    for key, value in _steps(agent).values.items():
        if key.startswith(prefix):
            yield key, decoded_step(agent.agent_id, run_id, value)
