"""One SQLite file, used by the threads of this process one after the other.

Every process has a connection of its own: one that was inherited over a fork is set aside, unused and
unclosed, because closing it would drop the parent's locks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakSet

from celery_ckpt.codec import FORMAT_VERSION
from celery_ckpt.errors import CheckpointError, SchemaTooNew, StoreDamaged, StoreError, StoreUnavailable
from celery_ckpt.stores.resources import queries, schema

#: How long a writer waits for another process before it gives up.
BUSY_SECONDS = 30.0


class Database:
    """Runs named statements in transactions."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._inherited: list[sqlite3.Connection] = []
        self._start()
        _OPEN.add(self)

    @property
    def where(self) -> str:
        """What to call it in an error."""
        return str(self._path or "memory")

    def _start(self) -> None:
        self._lock = threading.RLock()
        try:
            self._connection = self._connect()
            self._prepare()
        except sqlite3.Error as error:
            raise self.translate(error) from error

    def _connect(self) -> sqlite3.Connection:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        return sqlite3.connect(
            self._path or ":memory:",
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )

    def _prepare(self) -> None:
        if self._path is not None:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
        with self.writing():
            there = "SELECT 1 FROM sqlite_master WHERE name = 'ckpt_format'"
            if self._connection.execute(there).fetchone() is None:
                self._create()
            [version] = self._connection.execute("SELECT version FROM ckpt_format").fetchone()
        if version > FORMAT_VERSION:
            raise SchemaTooNew(
                what=f"The store {self.where}", version=version, supported=FORMAT_VERSION
            )

    def _create(self) -> None:
        for statement in schema().split(";\n"):
            self._connection.execute(statement)

    def after_fork(self) -> None:
        """In a child: begin anew with a connection of its own."""
        if self._path is not None:
            self._inherited.append(self._connection)
            self._start()
        else:
            self._lock = threading.RLock()

    def close(self) -> None:
        """Close this process's connection."""
        _OPEN.discard(self)
        with self._lock:
            self._connection.close()

    def writing(self) -> Transaction:
        """One transaction: everything in the block, or nothing."""
        return Transaction(self, "BEGIN IMMEDIATE", "COMMIT")

    def reading(self) -> Transaction:
        """One view of the data, whatever others write meanwhile."""
        return Transaction(self, "BEGIN", "ROLLBACK")

    def begin(self, statement: str) -> None:
        """Begin a transaction, when this thread's turn has come."""
        self._lock.acquire()
        try:
            self._connection.execute(statement)
        except sqlite3.Error as error:
            self._lock.release()
            raise self.translate(error) from error

    def end(self, statement: str) -> None:
        """End a transaction."""
        try:
            self._connection.execute(statement)
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise self.translate(error) from error
        finally:
            self._lock.release()

    def translate(self, error: sqlite3.Error) -> CheckpointError:
        """The error of ours that says what one of the driver's means."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN):
            return StoreUnavailable(where=self.where, reason=str(error))
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreDamaged(where=self.where, reason=str(error))
        return StoreError(reason=f"The SQLite store {self.where} answered: {error}")

    def write(self, query: str, *values: Any) -> int | None:
        """Run one statement as a transaction of its own; returns the number that it returns."""
        with self._lock:
            try:
                rows = self._connection.execute(_QUERIES[query], values).fetchall()
            except sqlite3.Error as error:
                raise self.translate(error) from error
        return rows[0][0] if rows else None

    def one(self, query: str, *values: Any) -> Any:
        """The first row of a statement, or ``None``."""
        return self._connection.execute(_QUERIES[query], values).fetchone()

    def all(self, query: str, *values: Any) -> list[Any]:
        """All rows of a statement."""
        return self._connection.execute(_QUERIES[query], values).fetchall()

    def run(self, query: str, *values: Any) -> int:
        """How many rows a statement changed."""
        return self._connection.execute(_QUERIES[query], values).rowcount

    def add(self, query: str, *values: Any) -> int:
        """The key of the row that a statement added."""
        key = self._connection.execute(_QUERIES[query], values).lastrowid
        assert key is not None
        return key


class Transaction:
    """A transaction as a block; the driver's errors leave it as ours."""

    __slots__ = ("_begin", "_database", "_end")

    def __init__(self, database: Database, begin: str, end: str) -> None:
        self._database, self._begin, self._end = database, begin, end

    def __enter__(self) -> None:
        self._database.begin(self._begin)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._database.end(self._end if error is None else "ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise self._database.translate(error) from error


_QUERIES = queries()
_OPEN: WeakSet[Database] = WeakSet()


def _after_fork() -> None:
    for database in list(_OPEN):
        database.after_fork()


os.register_at_fork(after_in_child=_after_fork)
