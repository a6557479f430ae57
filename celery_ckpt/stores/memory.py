"""MemoryCheckpointStore: everything in this process. The reference model of the contract.

Checkpoints are immutable and share their messages, so that keeping them costs only the new messages.
One lock makes every method atomic.
"""
# ruff: noqa: D102  (CheckpointStore and AgentTransaction document these methods)

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from weakref import WeakSet

from celery_ckpt.checkpoint import Checkpoint, is_same
from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.errors import AlreadyExists, StoreError
from celery_ckpt.event_log import LogEntry, Part, decoded, encoded, kept
from celery_ckpt.json_values import microseconds
from celery_ckpt.names import checked_name, digest_of_run
from celery_ckpt.records import (
    MANY_RUNS,
    AgentContents,
    CheckpointInfo,
    Finding,
    Lease,
    RunRecord,
    Schedule,
    Step,
)
from celery_ckpt.retention.policy import old_runs
from celery_ckpt.retention.report import PIN, AgentPolicy, CheckpointSummary
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, checked_limit
from celery_ckpt.stores.encryption_tag import plain_history, refuse_encrypted_checkpoint
from celery_ckpt.stores.findings import scheduled_without_agent
from celery_ckpt.stores.log.draft import Parts
from celery_ckpt.stores.rules import deletion, turns
from celery_ckpt.stores.rules.changes import change_time
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.stores.rules.open_attempt import OpenAttempt
from celery_ckpt.stores.rules.transaction import TurnState
from celery_ckpt.stores.transactional import TransactionalStore

_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class MemoryAgent:
    """Everything that the store has of one agent: an ``AgentTransaction`` while the lock is held."""

    def __init__(self, agent_id: str, store: MemoryCheckpointStore) -> None:
        self.agent_id = agent_id
        self._store = store
        self.lease = LeaseState()
        self.turn = TurnState()
        self.policy = AgentPolicy()
        self.seq = 0
        self.checkpoints: dict[int, Checkpoint] = {}
        self._steps: dict[tuple[str, str], Step] = {}
        self._runs: dict[str, RunRecord] = {}
        #: The numbers of all runs, and the ids of the open ones, in the order in which they were sent.
        self._numbers: dict[str, int] = {}
        self._open: dict[str, None] = {}
        self._sent = 0
        self.changed_at = 0
        self.attempt: OpenAttempt | None = None
        self.followed_until = 0
        #: The number of the last entry of the event log, and its entries in order.
        self._last_entry = 0
        self._log: list[tuple[int, Part, bytes]] = []
        #: True while the agent is certain to be on the schedule of sweeps.
        self.is_listed = False

    @property
    def exists(self) -> bool:
        return self.agent_id in self._store._agents

    def note_change(self) -> None:
        self.changed_at = change_time(self._store._now(), self.changed_at)

    # -- runs ----------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRecord | None:
        return self._runs.get(run_id)

    def has_run(self, run_id: str) -> bool:
        return run_id in self._runs

    def runs(self) -> list[RunRecord]:
        return list(self._runs.values())

    def open_runs(self) -> list[RunRecord]:
        chosen = {*islice(self._open, MANY_RUNS), *([self.turn.active] if self.turn.active else ())}
        return [self._runs[run_id] for run_id in self._open if run_id in chosen]

    def first_in_line(self, now: datetime) -> RunRecord | None:
        runs = (self._runs[run_id] for run_id in self._open)
        return next((run for run in runs if run.may_have_turn(now)), None)

    def is_older(self, run_id: str, *, than: str) -> bool:
        numbers = self._numbers
        return run_id in numbers and than in numbers and numbers[run_id] < numbers[than]

    def runs_to_mark(self) -> list[str]:
        return [run.run_id for run in self._runs.values() if deletion.needs_marker(run)]

    def last_run(self) -> RunRecord | None:
        return next(reversed(self._runs.values()), None)

    def count_runs(self) -> tuple[int, int]:
        return len(self._runs), len(self._open)

    def put(self, run: RunRecord) -> None:
        known = self._runs.get(run.run_id)
        if known is None or (known.is_settled and not run.is_settled):
            self._runs.pop(run.run_id, None)
            self._sent += 1
            self._numbers[run.run_id] = self._sent
        self._runs[run.run_id] = run
        if run.is_settled:
            self._open.pop(run.run_id, None)
        else:
            self._open.setdefault(run.run_id)

    def deletable_runs(self) -> dict[str, datetime]:
        runs = old_runs(self.agent_id, self.runs(), _END_OF_TIME)
        return {run.run_id: run.counts_as_ended_at for run in runs}

    def delete_runs(self, run_ids: list[str]) -> None:
        for run_id in run_ids:
            self.drop_steps(run_id)
            del self._runs[run_id], self._numbers[run_id]

    # -- steps ---------------------------------------------------------------------------------------

    def step(self, run_id: str, key: str) -> Step | None:
        return self._steps.get((run_id, key))

    def steps_of(self, run_id: str) -> list[Step]:
        return [step for step in self._steps.values() if step.run_id == run_id]

    def count_steps(self) -> int:
        return len(self._steps)

    def add_step(self, step: Step, value: bytes) -> None:
        self._steps[step.run_id, step.key] = step

    def drop_steps(self, run_id: str, first: int = 0, last: int | None = None) -> int:
        dropped = [
            key
            for key, step in self._steps.items()
            if step.run_id == run_id
            and first <= step.iteration
            and (last is None or step.iteration <= last)
        ]
        for key in dropped:
            del self._steps[key]
        return len(dropped)

    # -- checkpoints ---------------------------------------------------------------------------------

    @property
    def last_save(self) -> int:
        return self.seq

    def newest_first(self) -> list[tuple[int, Checkpoint]]:
        """Return the checkpoints with their numbers, newest first."""
        return sorted(self.checkpoints.items(), reverse=True)

    def info(self, seq: int, checkpoint: Checkpoint) -> CheckpointInfo:
        """Return the outline of a checkpoint."""
        fields = ("id", "iteration", "created_at", "event", "run_id", "metadata")
        return CheckpointInfo(
            seq=seq,
            pin=self.pin_of(checkpoint),
            messages=len(checkpoint.conversation),
            **{name: getattr(checkpoint, name) for name in fields},
        )

    def latest(self) -> CheckpointInfo | None:
        seq = max(self.checkpoints, default=None)
        return None if seq is None else self.info(seq, self.checkpoints[seq])

    def count_checkpoints(self) -> int:
        return len(self.checkpoints)

    def summaries(self) -> list[CheckpointSummary]:
        return [
            CheckpointSummary(one.id, seq, microseconds(one.created_at), self.pin_of(one))
            for seq, one in self.newest_first()
        ]

    def pin_of(self, checkpoint: Checkpoint) -> str | None:
        """Return the label by which a checkpoint is pinned."""
        return self.policy.label_of(checkpoint.id, checkpoint.metadata.get(PIN))

    def remove(self, checkpoint_ids: list[str]) -> int:
        wanted = set(checkpoint_ids)
        found = [seq for seq, checkpoint in self.checkpoints.items() if checkpoint.id in wanted]
        for seq in found:
            del self._store._by_id[self.checkpoints.pop(seq).id]
        self.policy = self.policy.without(wanted)
        return len(found)

    # -- the event log -------------------------------------------------------------------------------

    def append_log(self, lines: list[tuple[Part, bytes]]) -> None:
        limit = self._store.event_log_limit
        for part, text in lines:
            self._last_entry += 1
            self._log.append((self._last_entry, part, text))
            if self._last_entry % limit == 0:
                self._log = kept(self._log, limit)

    def drop_live(self) -> None:
        self._log = [line for line in self._log if line[1] is not Part.LIVE]

    def log_lines(self) -> tuple[int, list[tuple[int, Part, bytes]]]:
        return self._last_entry, list(self._log)

    # -- the whole agent -----------------------------------------------------------------------------

    def size(self) -> int:
        return 0

    def contents(self) -> AgentContents:
        checkpoints = [checkpoint for _, checkpoint in reversed(self.newest_first())]
        log = [
            decoded(self.agent_id, number, text)
            for number, part, text in self._log
            if part is not Part.LIVE
        ]
        return AgentContents(checkpoints, list(self._steps.values()), self.runs(), log)

    def replace(self, contents: AgentContents) -> None:
        for seq, checkpoint in zip(sorted(self.checkpoints), contents.checkpoints, strict=True):
            self.checkpoints[seq] = self._store._by_id[checkpoint.id] = checkpoint
        self._steps = {(step.run_id, step.key): step for step in contents.steps}
        for run in contents.runs:
            self._runs[run.run_id] = run
        self._log = [(one.cursor, one.part, encoded(one, self.agent_id)) for one in contents.log]

    def delete(self) -> int:
        del self._store._agents[self.agent_id]
        self._store._schedules[Schedule.SWEEP].pop(self.agent_id, None)
        for checkpoint in self.checkpoints.values():
            del self._store._by_id[checkpoint.id]
        return len(self.checkpoints)

    def mark_deleted(self, digests: list[str], seconds: float) -> None:
        now, markers = self._store._now(), self._store._markers
        for digest in [one for one, expires_at in markers.items() if expires_at <= now]:
            del markers[digest]
        markers.update(dict.fromkeys(digests, now + round(seconds * 1_000_000)))

    def is_marked(self, digest: str) -> bool:
        return self._store._markers.get(digest, 0) > self._store._now()

    # -- schedules -----------------------------------------------------------------------------------

    def schedule(self, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        return self._store.schedule(self.agent_id, after, on)

    def reschedule(self, due_at: int, after: float | None, on: Schedule = Schedule.SWEEP) -> int | None:
        known = self._store._schedules[on]
        if known.get(self.agent_id) != due_at:
            return None
        if after is not None:
            return self._store._put_off(self.agent_id, after, on)
        del known[self.agent_id]
        return None

    def unlist(self) -> None:
        self.is_listed = False


class MemoryCheckpointStore(TransactionalStore):
    """Keeps everything in memory, for tests and experiments."""

    features = frozenset({"rewrite", "reschedule", "log"})

    def __init__(
        self,
        *,
        clock: Clock = system_clock,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
    ) -> None:
        self.max_checkpoint_bytes = max_checkpoint_bytes
        self._clock = clock
        self._lock = threading.RLock()
        self._agents: dict[str, MemoryAgent] = {}
        self._by_id: dict[str, Checkpoint] = {}
        self._schedules: dict[Schedule, dict[str, int]] = {on: {} for on in Schedule}
        #: When the markers of deleted runs expire, by digest.
        self._markers: dict[str, int] = {}
        _STORES.add(self)

    @contextmanager
    def _transaction(
        self, agent_id: str, *, write: bool = True, make: bool = False
    ) -> Iterator[MemoryAgent]:
        with self._lock:
            agent = self._agents.get(checked_name(agent_id)) or MemoryAgent(agent_id, self)
            yield agent
            if make and not agent.exists:
                self._agents[agent_id] = agent
                if not agent.changed_at:
                    agent.note_change()

    # -- checkpoints ---------------------------------------------------------------------------------

    def save(
        self,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        run: RunRecord | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        Parts(checkpoint).refuse_too_large(checkpoint, self.max_checkpoint_bytes)
        self._refuse_too_large(run)
        with self._transaction(checkpoint.agent_id, make=True) as agent:
            if (stored := self._by_id.get(checkpoint.id)) is not None:
                if stored is not checkpoint and not is_same(stored, checkpoint):
                    what = f"Checkpoint {checkpoint.id}"
                    raise AlreadyExists(what=what, agent_id=stored.agent_id)
                return
            agent.lease.refuse(checkpoint.agent_id, lease, self._clock.now())
            if run is not None:
                agent.put(turns.replacement(agent, run))
                agent.note_change()
            if not agent.is_listed:
                agent.schedule(0, Schedule.SWEEP)
                agent.is_listed = True
            agent.seq += 1
            agent.checkpoints[agent.seq] = self._by_id[checkpoint.id] = checkpoint
            self._note_save(agent, checkpoint.id, checkpoint.iteration)
            self._note(agent, log)

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        return next(iter(self.list(agent_id, limit=1)), None)

    def load(self, checkpoint_id: str) -> Checkpoint | None:
        with self._lock:
            found = self._by_id.get(checked_name(checkpoint_id, "A checkpoint id"))
        if found is not None and not self.reads_encrypted:
            refuse_encrypted_checkpoint(found)
        return found

    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        checked_limit(limit, "list")
        with self._transaction(agent_id, write=False) as agent:
            found = [checkpoint for _, checkpoint in agent.newest_first()[:limit]]
        if not self.reads_encrypted:
            for checkpoint in found:
                refuse_encrypted_checkpoint(checkpoint)
        return found

    def history(
        self, agent_id: str, *, limit: int | None = None, before: int | None = None
    ) -> builtins.list[CheckpointInfo]:
        checked_limit(limit, "history")
        with self._transaction(agent_id, write=False) as agent:
            newest = agent.newest_first()
            page = [each for each in newest if before is None or each[0] < before][:limit]
            found = [agent.info(seq, one) for seq, one in page]
        return plain_history(self, agent_id, found)

    def was_deleted(self, run_id: str) -> bool:
        with self._lock:
            return self._markers.get(digest_of_run(run_id), 0) > self._now()

    def agents(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._agents))

    def _changes(self, unreadable: dict[str, StoreError]) -> builtins.list[tuple[int, str]]:
        with self._lock:
            return [(agent.changed_at, name) for name, agent in self._agents.items()]

    # -- schedules -----------------------------------------------------------------------------------

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        with self._lock:
            known, due_at = self._schedules[on], self._now() + round(after * 1_000_000)
            if checked_name(agent_id) in known:
                due_at = min(due_at, known[agent_id] - 1)
            known[agent_id] = due_at
            return due_at

    def _put_off(self, agent_id: str, after: float, on: Schedule) -> int:
        """Make a scheduled agent due ``after`` seconds from now. Return its new due time."""
        known, due_at = self._schedules[on], self._now() + round(after * 1_000_000)
        known[agent_id] = due_at - 1 if known[agent_id] == due_at else due_at
        return known[agent_id]

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        with self._lock:
            known = self._schedules[on]
            unchanged = [name for name, due_at in due_times.items() if known.get(name) == due_at]
            for name in unchanged:
                del known[name]
            return len(unchanged)

    def reschedule(
        self, due_times: Mapping[str, int], after: float, on: Schedule = Schedule.WATCHDOG
    ) -> dict[str, int]:
        with self._lock:
            known = self._schedules[on]
            unchanged = [name for name, due_at in due_times.items() if known.get(name) == due_at]
            return {name: self._put_off(name, after, on) for name in unchanged}

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        with self._lock:
            due = self._due(on)[:limit]
            return [(agent_id, self._put_off(agent_id, hold, on)) for agent_id in due]

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        with self._lock:
            return len(self._due(on))

    def _due(self, on: Schedule) -> builtins.list[str]:
        now = self._now()
        return [agent_id for agent_id, due_at in self._schedules[on].items() if due_at <= now]

    # -- maintenance ---------------------------------------------------------------------------------

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        with self._lock:
            orphans = [
                (on, agent_id)
                for on, due_times in self._schedules.items()
                for agent_id in due_times
                if agent_id not in self._agents
            ]
            for on, agent_id in orphans if repair else ():
                del self._schedules[on][agent_id]
        for on, agent_id in orphans:
            yield scheduled_without_agent(agent_id, on, repair)

    def risks(self) -> builtins.list[str]:
        return ["everything is in the memory of one process and is lost when the process ends"]


_STORES: WeakSet[MemoryCheckpointStore] = WeakSet()


def _renew_locks() -> None:
    # A thread that was inside a store when the process forked does not exist in the child.
    for store in list(_STORES):
        store._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)
