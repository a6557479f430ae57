"""FileCheckpointStore: a directory, several processes at once, every save synced to the disk.

``directory.py`` lists the files. A save appends to the agent's journal. Everything else that changes an
agent is written in the order that ``transaction.py`` states.
"""
# ruff: noqa: D102  (CheckpointStore documents these methods)

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.errors import (
    AlreadyExists,
    CheckpointDamaged,
    ConfigurationError,
    StoreDamaged,
    StoreError,
)
from celery_ckpt.event_log import LogEntry
from celery_ckpt.names import checked_name, digest_of_run, locator_in
from celery_ckpt.records import Finding, Lease, RunRecord, Schedule
from celery_ckpt.retention.report import PrunePlan, PruneResult
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES
from celery_ckpt.stores.file.directory import AgentDirectory, StoreDirectory
from celery_ckpt.stores.file.doctor import findings_of
from celery_ckpt.stores.file.filesystem import translated
from celery_ckpt.stores.file.journal import Journal
from celery_ckpt.stores.file.transaction import FileTransaction
from celery_ckpt.stores.log.draft import Basis, Draft
from celery_ckpt.stores.log.record import Record
from celery_ckpt.stores.log.store import (
    BasisGone,
    LogStore,
    SavedBefore,
    Stored,
    newest_first,
    ranges_of_all,
)
from celery_ckpt.stores.permissions import open_to_others
from celery_ckpt.stores.rules import pruning, turns
from celery_ckpt.stores.transactional import TransactionalStore


class FileCheckpointStore(TransactionalStore, LogStore):
    """Keeps everything in files below a directory, which the first save creates.

    Raises:
        ConfigurationError: the path exists and is not a directory.
    """

    features = frozenset({"rewrite", "reschedule", "log"})

    def __init__(
        self,
        directory: str | Path,
        *,
        clock: Clock = system_clock,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
    ) -> None:
        super().__init__(max_checkpoint_bytes=max_checkpoint_bytes)
        root = Path(directory).absolute()
        if root.exists() and not root.is_dir():
            raise ConfigurationError(reason=f"{root} is not a directory: name one for the store.")
        self._directory = StoreDirectory(root)
        self._clock = clock

    def risks(self) -> builtins.list[str]:
        with translated(self._directory.root):
            return open_to_others(self._directory.root)

    @contextmanager
    def _transaction(
        self, agent_id: str, *, write: bool = True, make: bool = False
    ) -> Iterator[FileTransaction]:
        directory = self._directory
        held = directory.writing if make else directory.changing if write else directory.reading
        with held(agent_id) as found:
            agent = self._transaction_on(found)
            yield agent
            if write:
                agent.write()
        # What is outside of the agent's directory is deleted after the lock is released.
        if agent.unregistered:
            directory.unregister(agent.unregistered, agent_id)
        if agent.is_deleted:
            directory.empty_trash()

    def _transaction_on(self, agent: AgentDirectory) -> FileTransaction:
        return FileTransaction(
            self._directory,
            agent,
            clock=self._clock,
            limit=self.max_checkpoint_bytes,
            event_log_limit=self.event_log_limit,
        )

    # -- checkpoints ---------------------------------------------------------------------------------

    def _append(
        self,
        agent_id: str,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
        log: Sequence[LogEntry],
    ) -> int:
        with self._transaction(agent_id, make=True) as agent:
            journal = agent.journal
            stored = journal.live.get(checkpoint_id)
            if stored is not None:
                raise SavedBefore(Record.parse(agent_id, checkpoint_id, stored.record).digest)
            agent.lease.refuse(agent_id, lease, self._clock.now())
            if draft.basis is Basis.EMPTY and journal.live:
                raise BasisGone
            if isinstance(draft.basis, str) and not journal.has(draft.basis, draft.mark):
                raise BasisGone
            if run is None:
                # An earlier save of this checkpoint, with a run, may have failed.
                agent.resolve_pending_run()
                agent.mark_listed()
                base = journal.save(checkpoint_id, draft.rest, draft.messages)
            else:
                record = turns.replacement(agent, run)
                agent.mark_listed()
                agent.write_pending_run(checkpoint_id, record)
                agent.note_change()
                base = journal.save(checkpoint_id, draft.rest, draft.messages)
                agent.resolve_pending_run()
            self._note_save(agent, checkpoint_id, draft.iteration)
            self._note(agent, log)
            return base

    def _read(self, agent_id: str, checkpoint_id: str | None) -> Stored | None:
        with self._directory.reading(agent_id) as agent:
            journal = agent.journal
            name = next(reversed(journal.live), None) if checkpoint_id is None else checkpoint_id
            line = None if name is None else _line(agent_id, journal, name)
            if name is None or line is None:
                return None
            ranges = Record.parse(agent_id, name, line).ranges
            return Stored(agent_id, name, line, journal.messages(ranges))

    def _read_messages(
        self, agent_id: str, checkpoint_id: str, wanted: slice
    ) -> tuple[int, int, builtins.list[bytes]] | None:
        with self._directory.reading(agent_id) as agent:
            line = _line(agent_id, agent.journal, checkpoint_id)
            if line is None:
                return None
            record = Record.parse(agent_id, checkpoint_id, line)
            total, start, ranges = record.places(wanted)
            return total, start, record.lines(ranges, agent.journal.messages(ranges))

    def _read_many(
        self, agent_id: str, limit: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], Mapping[int, bytes]]:
        with self._directory.reading(agent_id) as agent:
            lines = newest_first(agent.journal.lines())[:limit]
            return lines, agent.journal.messages(ranges_of_all(agent_id, lines))

    def _lines(self, agent_id: str) -> Iterable[tuple[str, bytes]]:
        with self._directory.reading(agent_id) as agent:
            return agent.journal.lines()

    def _agents_that_may_have(self, checkpoint_id: str) -> Iterable[str]:
        yield from self._directory.with_locator(locator_in(checkpoint_id))
        if owner := self._directory.registered(checkpoint_id):
            yield owner

    def _register(self, checkpoint_id: str, agent_id: str) -> None:
        if self._directory.register(checkpoint_id, agent_id) != agent_id:
            raise AlreadyExists(what=f"Checkpoint {checkpoint_id}", agent_id=agent_id)

    def was_deleted(self, run_id: str) -> bool:
        return self._directory.markers.has(digest_of_run(run_id), self._now())

    def agents(self) -> Iterator[str]:
        return self._directory.names()

    def _changes(self, unreadable: dict[str, StoreError]) -> Iterator[tuple[int, str]]:
        try:
            yield from self._directory.changes()
        except StoreDamaged as error:  # the name of an agent
            unreadable[error.where] = error

    # -- schedules -----------------------------------------------------------------------------------

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        return self._directory.schedules[on].set(checked_name(agent_id), self._now(), after)

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        schedule = self._directory.schedules[on]
        return sum(schedule.remove(name, due_at) for name, due_at in due_times.items())

    def reschedule(
        self, due_times: Mapping[str, int], after: float, on: Schedule = Schedule.WATCHDOG
    ) -> dict[str, int]:
        schedule, now = self._directory.schedules[on], self._now()
        moved = ((name, schedule.move(name, at, now, after)) for name, at in due_times.items())
        return {name: due_at for name, due_at in moved if due_at is not None}

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        schedule, now = self._directory.schedules[on], self._now()
        claimed = ((name, schedule.move(name, at, now, hold)) for name, at in schedule.due(now))
        return list(islice(((name, at) for name, at in claimed if at is not None), limit))

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        return sum(1 for _ in self._directory.schedules[on].due(self._now()))

    # -- maintenance ---------------------------------------------------------------------------------

    def _apply(self, plan: PrunePlan) -> PruneResult:
        try:
            return super()._apply(plan)
        except StoreDamaged:
            if not plan.snapshot.damage:
                raise
            # Even the name of the agent cannot be read. Only its due time is changed.
            agent_id = plan.snapshot.agent_id
            missing = AgentDirectory.missing(agent_id, self._directory.path_of(agent_id))
            return pruning.apply(self._transaction_on(missing), plan, self._clock.now())

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        return findings_of(self._directory, self._transaction, self._now, repair)


def _line(agent_id: str, journal: Journal, checkpoint_id: str) -> bytes | None:
    """Return the line of a checkpoint. Raises ``CheckpointDamaged`` if it may be an unreadable one."""
    if checkpoint_id in journal.live:
        return journal.live[checkpoint_id].record
    if journal.is_incomplete():
        reason = "it may be one of the journal's unreadable records"
        raise CheckpointDamaged(agent_id=agent_id, checkpoint_id=checkpoint_id, reason=reason)
    return None
