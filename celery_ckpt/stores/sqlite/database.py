"""One SQLite database, which the threads of this process use one after the other.

An SQLite connection must not survive a fork: the child would believe that it holds the locks of its
parent. So connections are closed before a fork, and both processes connect again.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from celery_ckpt.errors import (
    CheckpointError,
    SchemaTooNew,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    is_disk_full,
)
from celery_ckpt.format_version import FORMAT_VERSION
from celery_ckpt.stores.resources import queries, schema

T = TypeVar("T")

#: How long a writer waits for another process before it raises ``StoreUnavailable``.
BUSY_SECONDS = 30.0
#: The codes of a failed write. SQLite reports only a full disk as such, not a quota, a limit of the
#: process or a lack of shared memory.
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
_UNAVAILABLE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
)


class Database:
    """Runs named statements in transactions."""

    def __init__(self, path: Path | None, *, is_synced: bool = False) -> None:
        #: ``None`` for a database in memory.
        self.path = path
        #: True if a transaction is on the disk when it ends.
        self._is_synced = is_synced
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        #: The cursor of ``insert``. Creating one for each insert takes as long as a look-up.
        self._cursor: sqlite3.Cursor | None = None
        self._is_closed = False
        try:
            with self.transaction():
                self._prepare()
        except BaseException:
            self.close()
            raise
        _OPEN.add(self)

    @property
    def where(self) -> str:
        """The name of the database in errors."""
        return str(self.path or "memory")

    def _connected(self) -> sqlite3.Connection:
        if self._is_closed:
            raise sqlite3.ProgrammingError("the store is closed")
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Private to this user. An existing file is not opened: closing it would drop our locks.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(
            self.path or ":memory:",
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )
        try:
            if self.path is not None:
                # Affects a new file only. Two or three saves fill a page, where 4096 bytes hold one.
                connection.execute("PRAGMA page_size = 8192")
                connection.execute("PRAGMA journal_mode = WAL")
                # Overwrite deleted data.
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_synced else 'NORMAL'}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _prepare(self) -> None:
        connection = self._connected()
        exists = "SELECT 1 FROM sqlite_master WHERE name = 'ckpt_format'"
        if connection.execute(exists).fetchone() is None:
            for statement in schema():
                connection.execute(statement)
        [version] = connection.execute("SELECT version FROM ckpt_format").fetchone()
        if version > FORMAT_VERSION:
            what = f"The store {self.where}"
            raise SchemaTooNew(what=what, version=version, supported=FORMAT_VERSION)

    def before_fork(self) -> None:
        """Wait for the current transaction, and close the file."""
        self._lock.acquire()
        if self.path is not None:
            self._disconnect()

    def after_fork_in_parent(self) -> None:
        """Release the lock of ``before_fork``."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close this process's connection."""
        _OPEN.discard(self)
        with self._lock:
            self._is_closed = True
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = self._cursor = None

    def transaction(self, *, write: bool = True) -> AbstractContextManager[None]:
        """Run a block as one transaction: all of it takes effect, or nothing."""
        return self.transaction_on(lambda: None, write=write)

    @contextmanager
    def transaction_on(self, subject: Callable[[], T], *, write: bool) -> Iterator[T]:
        """Run a block as one transaction on what ``subject`` returns inside of it.

        A transaction that only reads sees the data as it was at its beginning. An exception can be
        raised anywhere, for example by a soft time limit. If one is raised where no ``except`` can see
        it, the next transaction rolls this one back, and the lock is freed with the exception.
        """
        begin, end = ("BEGIN IMMEDIATE", "COMMIT") if write else ("BEGIN", "ROLLBACK")
        with self._lock:
            try:
                connection = self._connection or self._connected()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                connection.execute(begin)
                yield subject()
                connection.execute(end)
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error | OSError | OverflowError):
                    raise self.translate(error) from error
                raise

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):  # the next transaction rolls back first
                self._connection.execute("ROLLBACK")

    def empty_log(self) -> None:
        """Erase deleted data from the write-ahead log.

        If another connection is reading, the data stays there until SQLite starts the log from the
        beginning.
        """
        with self._lock, suppress(sqlite3.OperationalError):
            self._connected().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def translate(self, error: sqlite3.Error | OSError | OverflowError) -> CheckpointError:
        """Return the error of this package for an error of the driver."""
        extended = getattr(error, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if extended in _NO_ROOM or (isinstance(error, OSError) and is_disk_full(error)):
            return StoreFull(where=self.where, reason=str(error))
        if code in _UNAVAILABLE:
            return StoreUnavailable(where=self.where, reason=str(error))
        # A number that cannot be the key of a row, or a time.
        is_impossible = isinstance(error, OverflowError)
        if is_impossible or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreDamaged(where=self.where, reason=str(error))
        return StoreError(reason=f"The SQLite store {self.where} failed: {error}")

    def insert(self, query: str, values: tuple[Any, ...]) -> bool:
        """Add a row in its own transaction. Return False if a constraint refuses it."""
        with self._lock:
            try:
                cursor = self._cursor
                if cursor is None:
                    cursor = self._cursor = self._connected().cursor()
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
                cursor.execute(_QUERIES[query], values)
            except sqlite3.IntegrityError:
                return False
            except (sqlite3.Error, OSError) as error:
                raise self.translate(error) from error
        return True

    def one(self, query: str, *values: Any) -> Any:
        """Return the first row of a statement, or ``None``."""
        return (self._connection or self._connected()).execute(_QUERIES[query], values).fetchone()

    def all(self, query: str, *values: Any) -> list[Any]:
        """Return all rows of a statement."""
        return (self._connection or self._connected()).execute(_QUERIES[query], values).fetchall()

    def run(self, query: str, *values: Any) -> int:
        """Run a statement. Return how many rows it changed."""
        return (self._connection or self._connected()).execute(_QUERIES[query], values).rowcount

    def try_run(self, query: str, *values: Any) -> bool:
        """Run a statement of a transaction. Return False, and change nothing, if a constraint fails."""
        try:
            self.run(query, *values)
        except sqlite3.IntegrityError:
            return False
        return True

    def add(self, query: str, *values: Any) -> int:
        """Run a statement that adds a row. Return the key of the row."""
        key = (self._connection or self._connected()).execute(_QUERIES[query], values).lastrowid
        assert key is not None
        return key


_QUERIES = queries()
_OPEN: WeakSet[Database] = WeakSet()
#: The databases that were open when a fork began.
_FORKING: list[Database] = []


def _before_fork() -> None:
    _FORKING[:] = list(_OPEN)
    for database in _FORKING:
        database.before_fork()


def _after_fork_in_parent() -> None:
    for database in _FORKING:
        database.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for database in _FORKING:
        database.after_fork_in_child()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
