"""One SQLite file, used by the threads of this process one after the other.

SQLite must not be carried over a fork: the child would share the parent's idea of which locks are
held, and hold none. So connections are closed before a fork, and both sides open new ones.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from celery_ckpt.codec import FORMAT_VERSION
from celery_ckpt.errors import (
    CheckpointError,
    SchemaTooNew,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    is_disk_full,
)
from celery_ckpt.stores.resources import queries, schema

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="UsesDatabase")

#: How long a writer waits for another process before it gives up.
BUSY_SECONDS = 30.0
#: What it says when it could not write. Only of a disk that is full it says so; of a quota, of a limit
#: of the process, or of its shared memory it does not.
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
_NOT_NOW = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
)


class Database:
    """Runs named statements in transactions."""

    def __init__(self, path: Path | None, *, is_synced: bool = False) -> None:
        #: ``None``: it is in memory.
        self.path = path
        #: Is each transaction on the disk when it ends?
        self._is_synced = is_synced
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        #: Of the connection, for ``insert``: to make one each time takes as long as a look-up.
        self._cursor: sqlite3.Cursor | None = None
        self._is_closed = False
        try:
            self.transact("BEGIN IMMEDIATE", self._prepare, "COMMIT")
        except BaseException:
            self.close()
            raise
        _OPEN.add(self)

    @property
    def where(self) -> str:
        """What to call it in an error."""
        return str(self.path or "memory")

    def _connected(self) -> sqlite3.Connection:
        if self._is_closed:
            raise sqlite3.ProgrammingError("the store was closed")
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # For nobody but us. A file that is there is left alone: to close it would drop our locks.
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
                # Of a new file only: two or three saves to a page, instead of one and much air.
                connection.execute("PRAGMA page_size = 8192")
                connection.execute("PRAGMA journal_mode = WAL")
                # What was deleted is overwritten, and not only forgotten.
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
        """Wait for the transaction under way, and let go of the file."""
        self._lock.acquire()
        if self.path is not None:
            self._disconnect()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Go on, with a lock that no lost thread can hold."""
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

    def transact(self, begin: str, work: Callable[[], R], end: str) -> R:
        """Do something in a transaction, when this thread's turn has come: all of it, or nothing.

        An exception can come out of anywhere, a soft time limit for instance. The lock is one of C, so
        that it cannot stay behind; a transaction that did is rolled back by the next one.
        """
        with self._lock:
            try:
                connection = self._connected()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                connection.execute(begin)
                result = work()
                connection.execute(end)
                return result
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error | OSError | OverflowError):
                    raise self.translate(error) from error
                raise

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):  # the next transaction begins with it
                self._connection.execute("ROLLBACK")

    def empty_log(self) -> None:
        """Leave nothing in the write-ahead log of what the database does not hold any more.

        Not if somebody is reading just now: then it goes when the log is next begun anew.
        """
        with self._lock, suppress(sqlite3.OperationalError):
            self._connected().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def translate(self, error: sqlite3.Error | OSError | OverflowError) -> CheckpointError:
        """The error of ours that says what one of the driver's means."""
        extended = getattr(error, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if extended in _NO_ROOM or (isinstance(error, OSError) and is_disk_full(error)):
            return StoreFull(where=self.where, reason=str(error))
        if code in _NOT_NOW:
            return StoreUnavailable(where=self.where, reason=str(error))
        # A number that cannot be what it stands for: of a row, or of a moment.
        is_impossible = isinstance(error, OverflowError)
        if is_impossible or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreDamaged(where=self.where, reason=str(error))
        return StoreError(reason=f"The SQLite store {self.where} answered: {error}")

    def insert(self, query: str, values: tuple[Any, ...]) -> bool:
        """Add a row in a transaction of its own; False, and nothing happens, if it may not be added."""
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
        """The first row of a statement, or ``None``."""
        return self._connected().execute(_QUERIES[query], values).fetchone()

    def all(self, query: str, *values: Any) -> list[Any]:
        """All rows of a statement."""
        return self._connected().execute(_QUERIES[query], values).fetchall()

    def run(self, query: str, *values: Any) -> int:
        """How many rows a statement changed."""
        return self._connected().execute(_QUERIES[query], values).rowcount

    def add(self, query: str, *values: Any) -> int:
        """The key of the row that a statement added."""
        key = self._connected().execute(_QUERIES[query], values).lastrowid
        assert key is not None
        return key


class UsesDatabase(Protocol):
    """Something with a database."""

    _database: Database


def writing(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method one transaction that writes: everything in it, or nothing."""
    return _in_transaction(method, "BEGIN IMMEDIATE", "COMMIT")


def reading(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let a method see the data as it is when it begins, whatever others write meanwhile."""
    return _in_transaction(method, "BEGIN", "ROLLBACK")


def _in_transaction(
    method: Callable[Concatenate[S, P], R], begin: str, end: str
) -> Callable[Concatenate[S, P], R]:
    @wraps(method)
    def transaction(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._database.transact(begin, lambda: method(self, *args, **kwargs), end)

    return transaction


_QUERIES = queries()
_OPEN: WeakSet[Database] = WeakSet()
#: Those that were open when a fork began; it may take a while until each lets go.
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
