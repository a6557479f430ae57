"""What a contender can do, and our stores as contenders.

Only ``save`` is timed. Everything that a contender needs before it belongs in ``prepare``.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.work import Work
from celery_ckpt import (
    Checkpoint,
    CheckpointStore,
    FileCheckpointStore,
    MemoryCheckpointStore,
    RedisCheckpointStore,
    SqliteCheckpointStore,
)

#: The kinds of contenders, by which the report groups and colours them.
OURS, NAIVE, LIMIT, PEER = "ours", "naive", "limit", "peer"


@dataclass(frozen=True)
class Place:
    """Where a contender may store data: an empty Redis server and an empty directory."""

    redis_url: str
    directory: Path

    def client(self) -> Redis:
        """Return a client with the defaults of redis-py."""
        return Redis.from_url(self.redis_url)

    def bytes_in_redis(self) -> int:
        """Return the sum of MEMORY USAGE (SAMPLES 0: every element is counted) over all keys."""
        with self.client() as client:
            return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(count=1000))

    def bytes_on_disk(self) -> int:
        """Return the size of all files, after SQLite has checkpointed its write-ahead logs."""
        for database in self.directory.glob("*.db"):
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(file.stat().st_size for file in self.directory.rglob("*") if file.is_file())

    def clear_redis(self) -> None:
        """Delete everything, synchronously."""
        with self.client() as client:
            client.flushall(asynchronous=False)


class Contender(ABC):
    """One way to keep checkpoints."""

    name: str
    kind: str
    #: What a reader of its numbers has to know.
    note: str = ""

    def prepare(self, work: Work) -> Any:
        """Return what ``save`` takes. Not timed."""
        return work

    @abstractmethod
    def save(self, prepared: Any) -> None:
        """Save a checkpoint."""

    def before_reading(self, work: Work) -> None:  # noqa: B027
        """Prepare the data for ``load_latest``, ``list`` and ``prune``, if it is not what was saved."""

    def load_latest(self, agent_id: str) -> Any:
        """Return the latest checkpoint, or raise ``NotImplementedError``."""
        raise NotImplementedError

    def list(self, agent_id: str) -> Iterator[Any]:
        """Yield all checkpoints, complete."""
        raise NotImplementedError

    def prune(self, agent_id: str, keep: int) -> int:
        """Remove all but the newest checkpoints, and return how many were removed."""
        raise NotImplementedError

    #: Whether the agent can continue after ``prune``.
    survives_prune = True

    @abstractmethod
    def stored_bytes(self) -> int | None:
        """Return the number of stored bytes, or ``None`` if it is unknown."""

    def close(self) -> None:  # noqa: B027
        """Close connections and files."""


class OurStore(Contender):
    """One of our stores."""

    kind = OURS

    def __init__(self, name: str, store: CheckpointStore, place: Place) -> None:
        self.name, self._store, self._place = f"celery_ckpt {name}", store, place

    def prepare(self, work: Work) -> Checkpoint:
        return work.checkpoint

    def save(self, prepared: Checkpoint) -> None:
        self._store.save(prepared)

    def load_latest(self, agent_id: str) -> Any:
        return self._store.load_latest(agent_id)

    def list(self, agent_id: str) -> Iterator[Any]:
        return iter(self._store.list(agent_id))

    def prune(self, agent_id: str, keep: int) -> int:
        return self._store.prune(agent_id, keep)

    def stored_bytes(self) -> int | None:
        if isinstance(self._store, RedisCheckpointStore):
            return self._place.bytes_in_redis()
        return None if isinstance(self._store, MemoryCheckpointStore) else self._place.bytes_on_disk()

    def close(self) -> None:
        self._store.close()


def our_redis(place: Place) -> Contender:
    """Return our store on Redis or Valkey."""
    return OurStore("Redis", RedisCheckpointStore.from_url(place.redis_url), place)


def our_sqlite(place: Place) -> Contender:
    """Return our store on SQLite, with default options."""
    return OurStore("SQLite", SqliteCheckpointStore.open(place.directory / "ours.db"), place)


def our_file(place: Place) -> Contender:
    """Return our store in files: every save is on the disk when it returns."""
    store = OurStore("file", FileCheckpointStore(place.directory / "ours"), place)
    store.note = "synced to the disk by every save"
    return store


def our_memory(place: Place) -> Contender:
    """Return our store in memory."""
    store = OurStore("memory", MemoryCheckpointStore(), place)
    store.note = "returns the same objects that were saved; stores no bytes"
    return store
