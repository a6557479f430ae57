"""SqliteCheckpointStore: one file, several processes at once.

A save is one row: the messages that it added, and its record. Removing a checkpoint empties the
record; rows whose messages no checkpoint needs are deleted. With WAL and ``synchronous=NORMAL``, a
killed process loses nothing; a power failure may lose the last saves, but never leaves half of one.
With ``durability="fsync"`` (``synchronous=FULL``) a power failure loses nothing.
"""
# ruff: noqa: D102  (CheckpointStore documents these methods)

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.errors import (
    AlreadyExists,
    CheckpointError,
    ConfigurationError,
    RunNotFound,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from celery_ckpt.event_log import LogEntry
from celery_ckpt.format_version import FORMAT_VERSION
from celery_ckpt.names import checked_name, digest_of_run, locator_in, names_its_agent
from celery_ckpt.page_cursor import PageCursor
from celery_ckpt.records import (
    AgentContents,
    AgentOutline,
    AgentPage,
    Change,
    CurrentCall,
    Finding,
    Lease,
    RunOutline,
    RunRecord,
    RunStatus,
    Schedule,
    Step,
)
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.store import (
    DEFAULT_MAX_CHECKPOINT_BYTES,
    DEFAULT_REMEMBER,
    Durability,
    checked_limit,
    checked_page_limit,
    checked_status,
)
from celery_ckpt.stores.encoding import encoded
from celery_ckpt.stores.encryption_tag import plain_history, plain_outlines
from celery_ckpt.stores.findings import misplaced, not_scheduled, scheduled_without_agent
from celery_ckpt.stores.log.draft import Basis, Draft
from celery_ckpt.stores.log.record import Record
from celery_ckpt.stores.log.store import BasisGone, LogStore, SavedBefore, Stored, ranges_of_all
from celery_ckpt.stores.permissions import open_to_others
from celery_ckpt.stores.rules import changes, event_log, turns
from celery_ckpt.stores.sqlite.database import Database
from celery_ckpt.stores.sqlite.transaction import (
    SEQ_BITS,
    SqliteTransaction,
    save_numbers,
    schedule,
)
from celery_ckpt.stores.transactional import TransactionalStore
from celery_ckpt.usage import Usage

#: How many agents one query of ``agents`` returns.
_PAGE = 500
#: A place before all agents in the list.
_FIRST = PageCursor(2**62, "")
#: How many leases one transaction renews. Other processes wait for it.
_RENEWED_AT_ONCE = 100


class SqliteCheckpointStore(TransactionalStore, LogStore):
    """Keeps everything in an SQLite database."""

    features = frozenset({"rewrite", "reschedule", "log"})

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock = system_clock,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
    ) -> None:
        super().__init__(max_checkpoint_bytes=max_checkpoint_bytes)
        self._database = database
        self._clock = clock

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        clock: Clock = system_clock,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
        durability: Durability = "default",
    ) -> Self:
        """Open a database file. Create it and its directory if they do not exist.

        Raises:
            ConfigurationError: the path is a directory.
        """
        file = Path(path).absolute()
        if file.is_dir():
            raise ConfigurationError(reason=f"{file} is a directory: name a file in it for the store.")
        database = Database(file, is_synced=durability == "fsync")
        return cls(database, clock=clock, max_checkpoint_bytes=max_checkpoint_bytes)

    @classmethod
    def in_memory(
        cls,
        *,
        clock: Clock = system_clock,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
    ) -> Self:
        """Open a database in memory, which only this store can use. Closing the store deletes it."""
        return cls(Database(None), clock=clock, max_checkpoint_bytes=max_checkpoint_bytes)

    def risks(self) -> builtins.list[str]:
        return open_to_others(self._database.path) if self._database.path else []

    def close(self) -> None:
        self._database.close()

    def _transaction(
        self, agent_id: str, *, write: bool = True, make: bool = False
    ) -> AbstractContextManager[SqliteTransaction]:
        checked_name(agent_id)
        return self._database.transaction_on(lambda: self._agent(agent_id, make), write=write)

    def _agent(self, agent_id: str, make: bool) -> SqliteTransaction:
        limit = self.max_checkpoint_bytes
        log_limit = self.event_log_limit
        return SqliteTransaction(self._database, agent_id, self._clock, limit, make, log_limit)

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
        usual = None if run or log else _usual_row(agent_id, checkpoint_id, draft, lease)
        if usual is not None and self._database.insert("append", usual):
            return draft.end
        with self._database.transaction():
            agent = self._agent(agent_id, True)
            base = self._append_in_detail(agent, checkpoint_id, draft, lease, run)
            self._note(agent, log)
            return base

    def _record_and_append(
        self,
        step: Step,
        paid: Usage | None,
        log: Sequence[LogEntry],
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
    ) -> int | None:
        value = encoded(step, self.max_checkpoint_bytes)
        with self._transaction(step.agent_id, make=True) as agent:
            self._record(agent, step, value, lease, paid, log)
            usual = _usual_row(step.agent_id, checkpoint_id, draft, lease)
            if usual is not None and self._database.try_run("append", *usual):
                return draft.end
            try:
                return self._append_in_detail(agent, checkpoint_id, draft, lease, None)
            except (SavedBefore, BasisGone, CheckpointError):
                return None  # it has written nothing

    def _append_in_detail(
        self,
        agent: SqliteTransaction,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
    ) -> int:
        agent_id, basis = agent.agent_id, _basis(draft)
        name, *where = basis or (None, None, None)
        found = self._database.one("last_save", checkpoint_id, name, *save_numbers(agent.key), *where)
        follows, has_basis, last, base = found or (None, None, 0, 0)
        stored = None if follows else agent.line(checkpoint_id)
        if stored is not None:
            raise SavedBefore(Record.parse(agent_id, *stored).digest)
        agent.lease.refuse(agent_id, lease, self._clock.now())
        if draft.basis is Basis.EMPTY:
            if self._database.one("has_checkpoint", *save_numbers(agent.key)):
                raise BasisGone
        elif draft.basis is not Basis.ANY and not has_basis:
            raise BasisGone
        is_indexed = not follows and self._must_be_indexed(agent, checkpoint_id)
        if run is not None:
            agent.put(turns.replacement(agent, run))
            agent.note_change()
        agent.mark_listed()
        if agent.followed_until:
            event_log.drop_old_live(agent, self._clock.now())
            self._note_save(agent, checkpoint_id, draft.iteration)
        number = (agent.key << SEQ_BITS) + last + 1
        self._database.run("add_save", number, is_indexed, base, *_row(checkpoint_id, draft))
        return int(base)

    def _must_be_indexed(self, agent: SqliteTransaction, checkpoint_id: str) -> bool:
        """Return True for an id that does not name its agent, or is not greater than earlier ids."""
        if self._database.one("is_indexed", checkpoint_id):
            raise AlreadyExists(what=f"Checkpoint {checkpoint_id}", agent_id=agent.agent_id)
        is_own = names_its_agent(checkpoint_id, agent.agent_id)
        later = self._database.one("has_later_id", *save_numbers(agent.key), checkpoint_id)
        return not is_own or bool(later)

    def _read(self, agent_id: str, checkpoint_id: str | None) -> Stored | None:
        with self._transaction(agent_id, write=False) as agent:
            found = agent.line(checkpoint_id)
            if found is None:
                return None
            return Stored(agent_id, *found, agent.messages(Record.parse(agent_id, *found).ranges))

    def _read_messages(
        self, agent_id: str, checkpoint_id: str, wanted: slice
    ) -> tuple[int, int, builtins.list[bytes]] | None:
        with self._transaction(agent_id, write=False) as agent:
            found = agent.line(checkpoint_id)
            if found is None:
                return None
            record = Record.parse(agent_id, *found)
            total, start, ranges = record.places(wanted)
            messages = agent.messages(ranges)
        return total, start, record.lines(ranges, messages)

    def _page(
        self, agent_id: str, limit: int | None, before: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], AgentPolicy]:
        with self._transaction(agent_id, write=False) as agent:
            return agent.lines(limit, before), agent.policy

    def _read_many(
        self, agent_id: str, limit: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], Mapping[int, bytes]]:
        with self._transaction(agent_id, write=False) as agent:
            lines = agent.lines(limit)
            return lines, agent.messages(ranges_of_all(agent_id, lines))

    def _lines(self, agent_id: str) -> Iterable[tuple[str, bytes]]:
        with self._transaction(agent_id, write=False) as agent:
            return agent.lines()

    def _agents_that_may_have(self, checkpoint_id: str) -> Iterable[str]:
        with self._database.transaction(write=False):
            found = self._database.all("agents_by_id", checkpoint_id, locator_in(checkpoint_id))
        return [agent_id for (agent_id,) in found]

    def _register(self, checkpoint_id: str, agent_id: str) -> None:
        """Do nothing: the row of a save says that its id is indexed."""

    def delete(self, agent_id: str, *, remember: float = DEFAULT_REMEMBER) -> int:
        removed = super().delete(agent_id, remember=remember)
        self._database.empty_log()
        return removed

    def was_deleted(self, run_id: str) -> bool:
        digest = digest_of_run(run_id)
        with self._database.transaction(write=False):
            return self._database.one("marker", digest, self._now()) is not None

    def agents(self) -> Iterator[str]:
        after = -1
        while True:
            with self._database.transaction(write=False):
                page = self._database.all("agents_page", after, _PAGE)
            if not page:
                return
            yield from (agent_id for _, agent_id in page)
            after = page[-1][0]

    def _changes(self, unreadable: dict[str, StoreError]) -> Iterable[tuple[int, str]]:
        raise NotImplementedError("page reads an index")

    def page(
        self,
        status: RunStatus | str | None = None,
        *,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> AgentPage:
        wanted, size = checked_status(status), checked_page_limit(limit)
        place = _FIRST if after is None else PageCursor.parse(after)
        query, more = ("page", ()) if wanted is None else ("page_by_status", (wanted,))
        page, at_once = AgentPage([], None, [], {}), min(size, _PAGE) + 1
        while True:
            with self._database.transaction(write=False):
                rows = self._database.all(query, *place, at_once, prefix, *more)
                for agent_id, changed_at in rows:
                    if len(page.agents) == size:
                        return page._replace(after=page.cursors[-1])
                    place = PageCursor(changed_at, agent_id)
                    self._add_row(page, place)
            if len(rows) < at_once:
                return page

    def _add_row(self, page: AgentPage, place: PageCursor) -> None:
        """Add an agent to a page inside a transaction, which an error must not end."""
        try:
            row = self._row(self._agent(place.agent_id, make=False))
        except StoreUnavailable:
            raise
        except StoreError as error:
            page.unreadable[place.agent_id] = error
            return
        if row is not None:
            page.agents.append(row)
            page.cursors.append(str(place))

    def outline(self, agent_id: str) -> AgentOutline | None:
        with self._transaction(agent_id, write=False) as agent:
            return self._row(agent)

    def _row(self, agent: SqliteTransaction) -> AgentOutline | None:
        present, latest = agent.present_outline(), agent.latest()
        [run] = plain_outlines(self, [present]) if present else [None]
        plain_history(self, agent.agent_id, [latest] if latest else [])
        return changes.outline(agent, run, latest, self._clock.now())

    def run_outlines(
        self, agent_id: str, *, limit: int | None = None, before: str | None = None
    ) -> builtins.list[RunOutline]:
        checked_limit(limit, "run_outlines")
        with self._transaction(agent_id, write=False) as agent:
            number = None if before is None else agent.run_number(before)
            if before is not None and number is None:
                raise RunNotFound(agent_id=agent_id, run_id=before)
            return plain_outlines(self, agent.outlines(limit, number))

    # -- leases --------------------------------------------------------------------------------------

    def renew_many(
        self, leases: Sequence[Lease], ttl: float, *, calls: Sequence[CurrentCall | None] = ()
    ) -> builtins.list[Lease | StoreError]:
        known = list(zip(leases, calls or [None] * len(leases), strict=True))
        results: builtins.list[Lease | StoreError] = []
        for at in range(0, len(leases), _RENEWED_AT_ONCE):
            with self._database.transaction():
                page = known[at : at + _RENEWED_AT_ONCE]
                results += [self._renewed(lease, ttl, call) for lease, call in page]
        return results

    def _renewed(self, lease: Lease, ttl: float, call: CurrentCall | None) -> Lease | StoreError:
        """Renew a lease inside a transaction, which an error must not end."""
        agent = self._agent(lease.agent_id, make=False)
        try:
            return self._renew(agent, lease, ttl, call)
        except StoreError as error:
            return error
        except OverflowError as error:  # its stored time is not a time
            where = f"{self._database.where}, lease of agent {lease.agent_id!r}"
            return StoreDamaged(where=where, reason=str(error))

    # -- schedules -----------------------------------------------------------------------------------

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        with self._database.transaction():
            return schedule(self._database, self._clock, checked_name(agent_id), after, on)

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        query = f"unschedule_{on.value}"
        with self._database.transaction():
            return sum(self._database.run(query, name, due_at) for name, due_at in due_times.items())

    def reschedule(
        self, due_times: Mapping[str, int], after: float, on: Schedule = Schedule.WATCHDOG
    ) -> dict[str, int]:
        with self._database.transaction():
            return self._moved(due_times, after, on)

    def _moved(self, due_times: Mapping[str, int], after: float, on: Schedule) -> dict[str, int]:
        query, due_at = f"reschedule_{on.value}", self._now() + round(after * 1_000_000)
        rows = ((name, self._database.one(query, name, at, due_at)) for name, at in due_times.items())
        return {name: int(row[0]) for name, row in rows if row is not None}

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        with self._database.transaction():
            due = dict(self._database.all(f"due_{on.value}", self._now(), limit))
            return list(self._moved(due, hold, on).items())

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        with self._database.transaction(write=False):
            return int(self._database.one(f"count_due_{on.value}", self._now())[0])

    # -- maintenance ---------------------------------------------------------------------------------

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        changed: builtins.list[AgentContents] = []

        def noted(contents: AgentContents) -> AgentContents | None:
            after = change(contents)
            if after is not None:
                changed.append(after)
            return after

        is_done = super().rewrite(agent_id, noted, lease)
        if changed:
            self._database.empty_log()
        return is_done

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        if repair:
            with self._database.transaction():
                self._database.run("drop_markers", self._now())
        with self._database.transaction():
            rows = self._database.all("misplaced")
            for key, agent_id, status in rows if repair else ():
                changed_at = self._agent(agent_id, make=False).changed_at
                self._database.run("set_changed", key, changed_at, status)
        for _, agent_id, _ in rows:
            yield misplaced(agent_id, repair)
        for on in Schedule:
            with self._database.transaction():
                orphans = self._database.all(f"orphans_{on.value}")
                for agent_id, due_at in orphans if repair else ():
                    self._database.run(f"unschedule_{on.value}", agent_id, due_at)
            for agent_id, _ in orphans:
                yield scheduled_without_agent(agent_id, on, repair)
            with self._database.transaction():
                unscheduled = self._database.all(f"unscheduled_{on.value}")
                for (agent_id,) in unscheduled if repair else ():
                    schedule(self._database, self._clock, agent_id, 0, on)
            for (agent_id,) in unscheduled:
                yield not_scheduled(agent_id, on, repair)


def _row(checkpoint_id: str, draft: Draft) -> tuple[int, int, str, bytes, bytes]:
    """Return the last columns of the row of a save."""
    messages = b"\n".join(draft.messages)
    return FORMAT_VERSION, len(draft.messages), checkpoint_id, draft.rest, messages


def _basis(draft: Draft) -> tuple[str, int, bytes] | None:
    """Return the id of the basis, its base, and its low to digest; ``None`` without a basis."""
    base, _, low_to_digest = draft.mark.partition(" ")
    return (draft.basis, int(base), low_to_digest.encode()) if isinstance(draft.basis, str) else None


def _usual_row(
    agent_id: str, checkpoint_id: str, draft: Draft, lease: Lease | None
) -> tuple[object, ...] | None:
    """Return the values of the statement ``append``, or ``None`` if it cannot save this.

    Nearly every save is this one statement. It does nothing if anything is unusual, for example an
    expired lease or a checkpoint after the basis. Then the details decide.
    """
    basis = _basis(draft)
    if basis is None or not (lease is None or (lease.agent_id == agent_id and lease.nonce)):
        return None
    token, nonce = (lease.token, lease.nonce) if lease else (None, "")
    return (agent_id, token, nonce, *basis, draft.end, *_row(checkpoint_id, draft))
