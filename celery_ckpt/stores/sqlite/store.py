"""SqliteCheckpointStore: one file, several processes at once.

A save is one row: the messages that it added and its record. Pruning empties the record and drops the
rows whose messages nobody refers to any more. WAL and ``synchronous=NORMAL``: a killed process loses
nothing; a power failure may lose the last saves, but never leaves half of one. With
``durability="fsync"`` it loses none: ``synchronous=FULL``.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.codec import FORMAT_VERSION
from celery_ckpt.errors import AlreadyExists, ConfigurationError
from celery_ckpt.names import checked_name, locator_in, names_its_agent
from celery_ckpt.records import Lease, RunRecord, Schedule
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, Durability
from celery_ckpt.stores.log.draft import Basis, Draft
from celery_ckpt.stores.log.record import Record, stamp
from celery_ckpt.stores.log.store import BasisGone, SavedBefore, Stored, ranges_of_all
from celery_ckpt.stores.permissions import open_to_others
from celery_ckpt.stores.rules import turns
from celery_ckpt.stores.sqlite.database import Database, reading, writing
from celery_ckpt.stores.sqlite.ledger import lease_state
from celery_ckpt.stores.sqlite.rewrite import SqliteRewriting
from celery_ckpt.stores.sqlite.transaction import SEQ_BITS, places

_PAGE = 500


class SqliteCheckpointStore(SqliteRewriting):
    """Keeps everything in an SQLite database."""

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
        """Open a database file, making it and its directory if need be.

        Raises:
            ConfigurationError: there is a directory of that name.
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
        """Open a database that only this store has, and that goes with it."""
        return cls(Database(None), clock=clock, max_checkpoint_bytes=max_checkpoint_bytes)

    def risks(self) -> builtins.list[str]:
        """See ``CheckpointStore``."""
        return open_to_others(self._database.path) if self._database.path else []

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _append(
        self,
        agent_id: str,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
    ) -> int:
        messages = b"\n".join(draft.messages)
        added = (FORMAT_VERSION, len(draft.messages), checkpoint_id, draft.rest, messages)
        base, _, place = draft.mark.partition(" ")
        basis = (draft.basis, int(base), place.encode()) if isinstance(draft.basis, str) else None
        is_plain = lease is None or (lease.agent_id == agent_id and lease.nonce)
        if run is None and basis is not None and is_plain:
            # Nearly every save: one statement, which does nothing if anything at all is in its way,
            # be it an expired lease or a checkpoint behind the basis. Then it is looked at in detail.
            token, nonce = (lease.token, lease.nonce) if lease else (None, "")
            values = (agent_id, token, nonce, *basis, draft.end, *added)
            if self._database.insert("append", values):
                return draft.end
        return self._append_or_say_why(agent_id, checkpoint_id, draft, lease, run, basis, added)

    @writing
    def _append_or_say_why(
        self,
        agent_id: str,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
        basis: tuple[str, int, bytes] | None,
        added: tuple[int, int, str, bytes, bytes],
    ) -> int:
        name, *where = basis or (None, None, None)
        state = self._database.one("save_state", checkpoint_id, name, agent_id, *where)
        if state is None:
            key, follows, based_on, last, base = self._add_agent(agent_id, lease), None, None, None, 0
        else:
            key, *held, follows, based_on, last, base = state
            stored = None if follows else self._line(agent_id, key, checkpoint_id)
            if stored is not None:
                raise SavedBefore(Record.parse(agent_id, *stored).digest)
            lease_state(*held).refuse(agent_id, lease, self._clock.now())
        self._refuse_without_basis(key, draft, based_on)
        is_indexed = not follows and self._must_be_indexed(agent_id, key, checkpoint_id)
        if run is not None:
            desk = self._desk(agent_id)
            turns.refuse_unknown(desk, run)
            desk.put(turns.with_usage(desk, run))
        self._list(agent_id, key)
        place = (key << SEQ_BITS) + (last or 0) + 1
        self._database.add("add_save", place, is_indexed, base, *added)
        return int(base)

    def _must_be_indexed(self, agent_id: str, key: int, checkpoint_id: str) -> bool:
        """Can an id that does not follow the last one neither say whose it is nor be known as new?"""
        if self._database.one("is_indexed", checkpoint_id):
            raise AlreadyExists(what=f"Checkpoint {checkpoint_id}", agent_id=agent_id)
        is_own = names_its_agent(checkpoint_id, agent_id)
        return not is_own or bool(self._database.one("has_later_id", *places(key), checkpoint_id))

    def _list(self, agent_id: str, key: int) -> None:
        """Have a sweep look at the agent soon; until it is done, quick saves need not say so."""
        self._moment(agent_id, 0, Schedule.SWEEP)
        self._database.run("list", key, 1)

    def _refuse_without_basis(self, key: int, draft: Draft, based_on: int | None) -> None:
        if draft.basis is Basis.EMPTY:
            if self._database.one("has_checkpoint", *places(key)):
                raise BasisGone
        elif draft.basis is not Basis.ANY and not based_on:
            raise BasisGone

    @reading
    def _read(self, agent_id: str, checkpoint_id: str | None) -> Stored | None:
        key = self._key_of(agent_id)
        if key is None:
            return None
        found = self._line(agent_id, key, checkpoint_id)
        if found is None:
            return None
        return Stored(agent_id, *found, self._messages(key, Record.parse(agent_id, *found).ranges))

    def _line(self, agent_id: str, key: int, checkpoint_id: str | None) -> tuple[str, bytes] | None:
        if checkpoint_id is None:
            found = self._database.one("latest", *places(key))
        else:
            is_own = names_its_agent(checkpoint_id, agent_id)
            found = self._database.one("by_id", *places(key), checkpoint_id, is_own)
        return None if found is None else (found[0], stamp(*found[1:]))

    @reading
    def _read_many(
        self, agent_id: str, limit: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], Mapping[int, bytes]]:
        key = self._key_of(agent_id)
        if key is None:
            return [], {}
        lines = self._newest(key, -1 if limit is None else limit)
        return lines, self._messages(key, ranges_of_all(agent_id, lines))

    @reading
    def _lines(self, agent_id: str) -> Iterable[tuple[str, bytes]]:
        key = self._key_of(agent_id)
        return [] if key is None else self._newest(key)

    @reading
    def _agents_that_may_have(self, checkpoint_id: str) -> Iterable[str]:
        found = self._database.all("agents_by_id", checkpoint_id, locator_in(checkpoint_id))
        return [agent_id for (agent_id,) in found]

    def _register(self, checkpoint_id: str, agent_id: str) -> None:
        """Its row says that it is indexed."""

    @writing
    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        """See ``CheckpointStore``."""
        for checkpoint_id in checkpoint_ids:
            checked_name(checkpoint_id, "A checkpoint id")
        key = self._key_of(checked_name(agent_id))
        return 0 if key is None else self._remove(agent_id, key, checkpoint_ids)

    def delete(self, agent_id: str) -> int:
        """See ``CheckpointStore``."""
        removed = self._deleted(checked_name(agent_id))
        self._database.empty_log()
        return removed

    @writing
    def _deleted(self, agent_id: str) -> int:
        key = self._key_of(agent_id)
        return 0 if key is None else self._delete(agent_id, key)

    def agents(self) -> Iterator[str]:
        """See ``CheckpointStore``."""
        after = -1
        while page := self._page(after):
            yield from (agent_id for _, agent_id in page)
            after = page[-1][0]

    @reading
    def _page(self, after: int) -> builtins.list[tuple[int, str]]:
        return self._database.all("agents_page", after, _PAGE)
