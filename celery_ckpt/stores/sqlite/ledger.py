"""Leases, steps and run records in SQLite."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime, timedelta

from celery_ckpt.clock import Clock, microseconds
from celery_ckpt.errors import AlreadyExists
from celery_ckpt.names import checked_name, locator
from celery_ckpt.records import AgentActivity, Lease, RunRecord, Schedule, StartResult, Step
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encoding import decoded_step, encoded, is_same
from celery_ckpt.stores.rules import turns
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.stores.sqlite.database import Database, reading, writing
from celery_ckpt.stores.sqlite.transaction import LAST_ITERATION, SqliteDesk
from celery_ckpt.usage import Usage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lease_state(token: int, nonce: str, owner: str, expires_at: int) -> LeaseState:
    """The lease in a row of ``ckpt_agents``."""
    return LeaseState(token, nonce, owner, _EPOCH + timedelta(microseconds=expires_at))


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
        return self._database.add("add_agent", agent_id, locator(agent_id))

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
    def release(
        self, lease: Lease, *, run: RunRecord | None = None, due_in: float | None = None
    ) -> bool:
        """See ``CheckpointStore``."""
        self._watch(lease.agent_id, due_in)
        desk = self._desk(lease.agent_id)
        if not desk.lease.is_(lease):
            return False
        turns.refuse_unknown(desk, run)
        if run is not None:
            desk.put(turns.with_usage(desk, run))
        desk.lease = desk.lease.released()
        return True

    @reading
    def holder(self, agent_id: str) -> Lease | None:
        """See ``CheckpointStore``."""
        _, held = self._lease_of(agent_id)
        return held.lease(agent_id) if held.is_held(self._clock.now()) else None

    # -- steps ---------------------------------------------------------------------------------------

    @writing
    def record_step(self, step: Step, lease: Lease | None = None, *, paid: Usage | None = None) -> None:
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
        if paid:
            turns.pay(self._desk(agent_id), run_id, paid)

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
        last = LAST_ITERATION if last is None else min(last, LAST_ITERATION)
        key, held = self._lease_of(agent_id)
        held.refuse(agent_id, lease, self._clock.now())
        return self._database.run("drop_steps", key, run_id, first, last)

    # -- runs ----------------------------------------------------------------------------------------

    def _desk(self, agent_id: str, *, make: bool = False) -> SqliteDesk:
        key, held = self._lease_of(agent_id)
        if key is None and make:
            key = self._add_agent(agent_id, None)
        return SqliteDesk(self._database, agent_id, key or 0, held, self.max_checkpoint_bytes)

    @writing
    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        """See ``CheckpointStore``."""
        self._watch(run.agent_id, due_in)
        desk = self._desk(run.agent_id, make=True)
        stored = desk.run(run.run_id)
        if stored is not None:
            return is_same(stored, run)
        desk.put(run)
        return True

    @writing
    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        desk = self._desk(run.agent_id)
        turns.refuse_unknown(desk, run)
        desk.lease.refuse(run.agent_id, lease, self._clock.now())
        desk.put(turns.with_usage(desk, run))

    @reading
    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        return self._desk(agent_id).run(run_id)

    @reading
    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """See ``CheckpointStore``."""
        return self._desk(agent_id).runs()

    # -- whose turn it is ----------------------------------------------------------------------------

    @writing
    def start_run(
        self, run: RunRecord, owner: str, ttl: float, *, over: Lease | None = None
    ) -> StartResult:
        """See ``CheckpointStore``."""
        due_at = self._moment(run.agent_id, ttl)
        desk = self._desk(run.agent_id, make=True)
        started = turns.start(desk, run, owner, ttl, self._clock.now(), over)
        return started.model_copy(update={"due_at": due_at})

    @writing
    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        """See ``CheckpointStore``."""
        self._moment(run.agent_id, 0, Schedule.SWEEP)
        return turns.settle(self._desk(run.agent_id), run, lease, self._clock.now())

    @writing
    def cancel_run(self, agent_id: str, run_id: str, owner: str, ttl: float) -> Lease | None:
        """See ``CheckpointStore``."""
        return turns.cancel(self._desk(agent_id), run_id, owner, ttl, self._clock.now())

    @reading
    def activity(self, agent_id: str) -> AgentActivity:
        """See ``CheckpointStore``."""
        return turns.activity(self._desk(agent_id), self._clock.now())

    # -- what a watchdog, or a sweep, looks at -------------------------------------------------------

    def _watch(self, agent_id: str, after: float | None) -> None:
        if after is not None:
            self._moment(agent_id, after)

    def _moment(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        due_at = self._now() + round(after * 1_000_000)
        return int(self._database.one(f"watch_{on.value}", agent_id, due_at)[0])

    def _now(self) -> int:
        return microseconds(self._clock.now())
