"""The four stores, held to the contract that is shipped."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from celery_ckpt import (
    Checkpoint,
    CheckpointStore,
    FileCheckpointStore,
    MemoryCheckpointStore,
    SqliteCheckpointStore,
    open_store,
)
from celery_ckpt.testing import DamageContract, FakeClock, StoreContract

Spoil = Callable[[Checkpoint], None]


class WithFakeClock:
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()


class TestMemoryStore(WithFakeClock, StoreContract):
    @pytest.fixture
    def store(self, clock: FakeClock) -> CheckpointStore:
        return MemoryCheckpointStore(clock=clock)


class TestFileStore(WithFakeClock, StoreContract, DamageContract):
    @pytest.fixture
    def store(self, clock: FakeClock, tmp_path: Path) -> CheckpointStore:
        return FileCheckpointStore(tmp_path / "deep" / "store", clock=clock)

    @pytest.fixture
    def other_store(self, clock: FakeClock, tmp_path: Path) -> CheckpointStore:
        return FileCheckpointStore(tmp_path / "deep" / "store", clock=clock)

    @pytest.fixture
    def spoil(self, tmp_path: Path) -> Spoil:
        def spoil(checkpoint: Checkpoint) -> None:
            for journal in tmp_path.rglob("journal-*"):
                lines = journal.read_bytes().splitlines(keepends=True)
                own = checkpoint.id.encode()
                # The line keeps its length: a line that ends elsewhere would be another kind of damage.
                lines = [
                    line.replace(b'"iteration":', b'"interation:') if own in line else line
                    for line in lines
                ]
                journal.write_bytes(b"".join(lines))

        return spoil


class TestSqliteStore(WithFakeClock, StoreContract, DamageContract):
    @pytest.fixture
    def store(self, clock: FakeClock, tmp_path: Path) -> Iterator[CheckpointStore]:
        with SqliteCheckpointStore.open(tmp_path / "deep" / "store.db", clock=clock) as store:
            yield store

    @pytest.fixture
    def other_store(
        self, store: CheckpointStore, clock: FakeClock, tmp_path: Path
    ) -> Iterator[CheckpointStore]:
        with SqliteCheckpointStore.open(tmp_path / "deep" / "store.db", clock=clock) as other:
            yield other

    @pytest.fixture
    def spoil(self, tmp_path: Path) -> Spoil:
        def spoil(checkpoint: Checkpoint) -> None:
            with sqlite3.connect(tmp_path / "deep" / "store.db") as connection:
                spoilt = "UPDATE ckpt_saves SET record = x'00' WHERE id = ?"
                connection.execute(spoilt, [checkpoint.id])
            connection.close()

        return spoil


class TestSqliteStoreInMemory(WithFakeClock, StoreContract):
    @pytest.fixture
    def store(self, clock: FakeClock) -> Iterator[CheckpointStore]:
        with SqliteCheckpointStore.in_memory(clock=clock) as store:
            yield store


class TestRedisStore(StoreContract, DamageContract):
    @pytest.fixture
    def store(self, redis_url: str) -> Iterator[CheckpointStore]:
        with open_store(redis_url) as store:
            yield store

    @pytest.fixture
    def other_store(self, store: CheckpointStore, redis_url: str) -> Iterator[CheckpointStore]:
        with open_store(redis_url) as other:
            yield other

    @pytest.fixture
    def spoil(self, redis_url: str) -> Spoil:
        def spoil(checkpoint: Checkpoint) -> None:
            with Redis.from_url(redis_url) as client:
                key = f"ckpt:{{{checkpoint.agent_id}}}:agent"
                client.hset(key, f"c:{checkpoint.id}", "spoilt")

        return spoil
