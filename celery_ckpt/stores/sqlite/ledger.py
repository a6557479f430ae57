"""Leases, steps and run records in SQLite."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime, timedelta

from celery_ckpt.clock import Clock
from celery_ckpt.errors import AlreadyExists, RunNotFound
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease, RunRecord, Step
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.leases import LeaseState
from celery_ckpt.stores.limits import decoded_run, decoded_step, encoded, is_same
from celery_ckpt.stores.sqlite.database import Database, reading, writing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST_ITERATION = 2**62


def lease_state(token: int, nonce: str, owner: str, expires_at: int) -> LeaseState:
    """The lease in a row of ``ckpt_agents``."""
    return LeaseState(token, nonce, owner, _EPOCH + timedelta(microseconds=expires_at))


def microseconds(moment: datetime) -> int:
    """A point in time as the tables have it."""
    return (moment - _EPOCH) // _MICROSECOND


class SqliteLedger(CheckpointStore):
    """The part of the store that says who may write, and what was done."""

    max_checkpoint_bytes: int
    _database: Database
    _clock: Clock

    def _key_of(self, agent_id: str) -> int | None:
        found = self._database.one("agent", agent_id)
        return None if found is None else int(found[0])

    def _add_agent(self, agent_id: str, lease: Lease | None) -> int:
        LeaseState().refuse(agent_id, lease, self._clock.now())
        return self._database.add("add_agent", agent_id)

    def _lease_of(self, agent_id: str) -> tuple[int | None, LeaseState]:
        found = self._database.one("agent", checked_name(agent_id))
        return (None, LeaseState()) if found is None else (found[0], lease_state(*found[1:]))

    def _writable(self, agent_id: str, lease: Lease | None) -> int:
        key, held = self._lease_of(agent_id)
        held.refuse(agent_id, lease, self._clock.now())
        return self._add_agent(agent_id, lease) if key is None else key

    def _set_lease(self, key: int, state: LeaseState) -> None:
        expires_at = microseconds(state.expires_at)
        self._database.run("set_lease", key, state.token, state.nonce, state.owner, expires_at)

    # -- leases --------------------------------------------------------------------------------------

    @writing
    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        """See ``CheckpointStore``."""
        key, held = self._lease_of(agent_id)
        granted = held.granted(agent_id, owner, ttl, self._clock.now(), over)
        self._set_lease(self._add_agent(agent_id, None) if key is None else key, granted)
        return granted.lease(agent_id)

    @writing
    def renew(self, lease: Lease, ttl: float) -> Lease:
        """See ``CheckpointStore``."""
        key, held = self._lease_of(lease.agent_id)
        renewed = held.renewed(lease, ttl, self._clock.now())
        self._set_lease(key or 0, renewed)
        return renewed.lease(lease.agent_id)

    @writing
    def release(self, lease: Lease) -> bool:
        """See ``CheckpointStore``."""
        key, held = self._lease_of(lease.agent_id)
        if not held.is_(lease):
            return False
        self._set_lease(key or 0, held.released())
        return True

    @reading
    def holder(self, agent_id: str) -> Lease | None:
        """See ``CheckpointStore``."""
        _, held = self._lease_of(agent_id)
        return held.lease(agent_id) if held.is_held(self._clock.now()) else None

    # -- steps ---------------------------------------------------------------------------------------

    @writing
    def record_step(self, step: Step, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        value = encoded(step, self.max_checkpoint_bytes)
        agent_id, run_id = step.agent_id, step.run_id
        key = self._key_of(agent_id)
        if key and (found := self._database.one("step", key, run_id, step.key)):
            if not is_same(decoded_step(agent_id, run_id, found[0]), step):
                raise AlreadyExists(what=f"Step {step.key!r}", agent_id=agent_id)
            return
        key = self._writable(agent_id, lease)
        self._database.add("add_step", key, run_id, step.key, step.iteration, value)

    @reading
    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        key = self._key_of(checked_name(agent_id))
        rows = self._database.all("steps", key, run_id)
        return [decoded_step(agent_id, run_id, value) for (value,) in rows]

    @writing
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
        last = _LAST_ITERATION if last is None else min(last, _LAST_ITERATION)
        key, held = self._lease_of(agent_id)
        held.refuse(agent_id, lease, self._clock.now())
        return self._database.run("drop_steps", key, run_id, first, last)

    # -- runs ----------------------------------------------------------------------------------------

    @writing
    def add_run(self, run: RunRecord) -> bool:
        """See ``CheckpointStore``."""
        record = encoded(run, self.max_checkpoint_bytes)
        key = self._key_of(run.agent_id)
        key = self._add_agent(run.agent_id, None) if key is None else key
        found = self._database.one("run", key, run.run_id)
        if found is not None:
            return is_same(decoded_run(run.agent_id, run.run_id, found[0]), run)
        self._database.add("add_run", key, run.run_id, record)
        return True

    @writing
    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        record = encoded(run, self.max_checkpoint_bytes)
        key, held = self._lease_of(run.agent_id)
        if self._database.one("run", key, run.run_id) is None:
            raise RunNotFound(agent_id=run.agent_id, run_id=run.run_id)
        held.refuse(run.agent_id, lease, self._clock.now())
        self._database.run("update_run", key, run.run_id, record)

    @reading
    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        key = self._key_of(checked_name(agent_id))
        found = self._database.one("run", key, run_id)
        return None if found is None else decoded_run(agent_id, run_id, found[0])

    @reading
    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """See ``CheckpointStore``."""
        key = self._key_of(checked_name(agent_id))
        rows = self._database.all("runs", key)
        return [decoded_run(agent_id, run_id, record) for run_id, record in rows]
