"""What a watchdog and a sweep look at, and what a sweep does, in SQLite."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from celery_ckpt.errors import CheckpointError, StoreDamaged
from celery_ckpt.names import checked_name
from celery_ckpt.records import Finding, Schedule
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, PrunePlan, PruneResult, RunSummary
from celery_ckpt.stores.encoding import decoded_run, run_end
from celery_ckpt.stores.findings import moment_for_nobody, overlooked
from celery_ckpt.stores.log.marks import marks
from celery_ckpt.stores.log.record import low_of, stamp
from celery_ckpt.stores.log.store import LogStore
from celery_ckpt.stores.rules.pruning import apply, damaged, seen_of
from celery_ckpt.stores.sqlite.database import Database, reading, writing
from celery_ckpt.stores.sqlite.ledger import SqliteLedger
from celery_ckpt.stores.sqlite.transaction import LAST_ITERATION, SEQ_BITS, places

#: An offset that no log reaches.
_EVERYTHING = 2**62


class SqliteSweeps(SqliteLedger, LogStore):
    """The part of the store that knows when to look at agents, and tidies up."""

    # -- moments -------------------------------------------------------------------------------------

    @writing
    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        return self._moment(checked_name(agent_id), after, on)

    @writing
    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        query = f"unwatch_{on.value}"
        return sum(self._database.run(query, name, due_at) for name, due_at in due_times.items())

    @writing
    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """See ``CheckpointStore``."""
        come = self._database.all(f"come_{on.value}", self._now(), limit)
        return [(agent_id, self._moment(agent_id, hold, on)) for (agent_id,) in come]

    @reading
    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        return int(self._database.one(f"count_{on.value}", self._now())[0])

    # -- sweeping ------------------------------------------------------------------------------------

    @reading
    def policy(self, agent_id: str) -> AgentPolicy:
        """See ``CheckpointStore``."""
        found = self._database.one("notes", checked_name(agent_id))
        return self._parsed_policy(agent_id, found[0] if found else b"")

    def _parsed_policy(self, agent_id: str, stored: bytes) -> AgentPolicy:
        try:
            return AgentPolicy.from_bytes(stored)
        except ValueError as error:
            where = f"{self._database.where}, notes of agent {agent_id!r}"
            raise StoreDamaged(where=where, reason=str(error)) from error

    @writing
    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        """See ``CheckpointStore``."""
        noted = before.to_bytes(), after.to_bytes()
        is_set = bool(self._database.run("set_notes", checked_name(agent_id), *noted))
        if is_set:
            self._moment(agent_id, 0, Schedule.SWEEP)
        return is_set

    @reading
    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        """See ``CheckpointStore``."""
        return [self._sight(agent_id) for agent_id in agent_ids]

    def _sight(self, agent_id: str) -> AgentSnapshot:
        try:
            return _Broom(self, agent_id).snapshot()
        except CheckpointError as error:
            return damaged(agent_id, error)

    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        """See ``CheckpointStore``."""
        return [self._carry_out(plan) for plan in plans]

    @writing
    def _carry_out(self, plan: PrunePlan) -> PruneResult:
        return apply(_Broom(self, plan.snapshot.agent_id), plan)

    # -- dropping, within a transaction --------------------------------------------------------------

    def _newest(self, key: int, limit: int = -1) -> builtins.list[tuple[str, bytes]]:
        rows = self._database.all("newest", *places(key), limit)
        return [(name, stamp(*stored)) for name, *stored in rows]

    def _remove(self, agent_id: str, key: int, checkpoint_ids: builtins.list[str]) -> int:
        own = places(key)
        places_by_id = dict(self._database.all("ids", *own))
        there = places_by_id.keys() & checkpoint_ids
        for name in there:
            self._database.run("forget", places_by_id[name])
        staying = self._newest(key)
        keep_from = min((low_of(line) for _, line in staying), default=_EVERYTHING)
        self._database.run("trim", *own, keep_from)
        stored = self._database.one("notes", agent_id)[0]
        policy = self._parsed_policy(agent_id, stored).without(checkpoint_ids)
        self._database.run("set_notes", agent_id, stored, policy.to_bytes())
        return len(there)

    def _delete(self, agent_id: str, key: int) -> int:
        [removed] = self._database.one("count_checkpoints", *places(key))
        self._database.run("delete_saves", *places(key))
        for table in ("delete_steps", "delete_runs", "delete_agent"):
            self._database.run(table, key)
        self._database.run("forget_sweep", agent_id)
        return int(removed)

    # -- healing -------------------------------------------------------------------------------------

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        """See ``CheckpointStore``."""
        for on in Schedule:
            for agent_id in self._orphans(on, repair):
                yield moment_for_nobody(agent_id, on, repair)
            for agent_id in self._overlooked(on, repair):
                yield overlooked(agent_id, on, repair)

    @writing
    def _orphans(self, on: Schedule, repair: bool) -> builtins.list[str]:
        found = self._database.all(f"orphans_{on.value}")
        for agent_id, due_at in found if repair else ():
            self._database.run(f"unwatch_{on.value}", agent_id, due_at)
        return [agent_id for agent_id, _ in found]

    @writing
    def _overlooked(self, on: Schedule, repair: bool) -> builtins.list[str]:
        found = [agent_id for (agent_id,) in self._database.all(f"overlooked_{on.value}")]
        for agent_id in found if repair else ():
            self._moment(agent_id, 0, on)
        return found


class _Broom:
    """A ``sweeps.Broom`` within a transaction."""

    def __init__(self, store: SqliteSweeps, agent_id: str) -> None:
        self._store, self._agent_id = store, agent_id
        self._database: Database = store._database
        key, self._lease = store._lease_of(agent_id)
        self._key = key or 0

    def snapshot(self) -> AgentSnapshot:
        """See ``sweeps.Broom``."""
        if not self._key:
            return AgentSnapshot(self._agent_id)
        told, steps, runs, open_runs, place, is_named = self._database.one("sight", self._key)
        policy = self._store._parsed_policy(self._agent_id, told)
        seq = (place or 0) & (1 << SEQ_BITS) - 1
        found = self._database.one("last_run", self._key)
        return AgentSnapshot(
            self._agent_id,
            seen_of(seq, steps, runs, open_runs, self._lease, policy),
            marks(self._agent_id, self._store._newest(self._key), policy),
            policy,
            bool(open_runs) or self._lease.is_held(self._store._clock.now()),
            bool(is_named),
            RunSummary.of(decoded_run(self._agent_id, *found) if found else None),
            min(self._ends().values(), default=None),
        )

    def remove(self, checkpoint_ids: builtins.list[str]) -> int:
        """See ``sweeps.Broom``."""
        before = self._size()
        self._store._remove(self._agent_id, self._key, checkpoint_ids)
        return before - self._size()

    def forget_runs(self, before: datetime) -> tuple[int, int]:
        """See ``sweeps.Broom``."""
        gone = [run_id for run_id, end in self._ends().items() if end <= before]
        size = sum(self._forget_run(run_id) for run_id in gone)
        return len(gone), size

    def _forget_run(self, run_id: str) -> int:
        [record] = self._database.one("run", self._key, run_id)
        self._database.run("drop_steps", self._key, run_id, 0, LAST_ITERATION)
        self._database.run("delete_run", self._key, run_id)
        return len(record)

    def _ends(self) -> dict[str, datetime]:
        """When those runs ended that may go (see ``retention.old_runs``)."""
        rows = self._database.all("may_go", self._key, self._agent_id)
        ends = ((run_id, run_end(record)) for run_id, record in rows)
        return {run_id: end for run_id, end in ends if end is not None}

    def forget(self) -> int:
        """See ``sweeps.Broom``."""
        size = self._size()
        self._store._delete(self._agent_id, self._key)
        return size

    def _size(self) -> int:
        return int(self._database.one("size", *places(self._key))[0])

    def unlist(self) -> None:
        """See ``sweeps.Broom``."""
        self._database.run("list", self._key, 0)

    def move(self, due_at: int, after: float | None) -> None:
        """See ``sweeps.Broom``."""
        is_mine = self._database.run("unwatch_sweep", self._agent_id, due_at)
        if is_mine and after is not None:
            self._store._moment(self._agent_id, after, Schedule.SWEEP)
