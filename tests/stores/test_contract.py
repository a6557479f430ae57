"""The four stores, held to the contract that is shipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_ckpt import (
    CheckpointStore,
    FileCheckpointStore,
    MemoryCheckpointStore,
    SqliteCheckpointStore,
    open_store,
)
from celery_ckpt.testing import FakeClock, StoreContract


class WithFakeClock:
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()


class TestMemoryStore(WithFakeClock, StoreContract):
    @pytest.fixture
    def store(self, clock: FakeClock) -> CheckpointStore:
        return MemoryCheckpointStore(clock=clock)


class TestFileStore(WithFakeClock, StoreContract):
    @pytest.fixture
    def store(self, clock: FakeClock, tmp_path: Path) -> CheckpointStore:
        return FileCheckpointStore(tmp_path / "deep" / "store", clock=clock)

    @pytest.fixture
    def other_store(self, clock: FakeClock, tmp_path: Path) -> CheckpointStore:
        return FileCheckpointStore(tmp_path / "deep" / "store", clock=clock)


class TestSqliteStore(WithFakeClock, StoreContract):
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


class TestSqliteStoreInMemory(WithFakeClock, StoreContract):
    @pytest.fixture
    def store(self, clock: FakeClock) -> Iterator[CheckpointStore]:
        with SqliteCheckpointStore.in_memory(clock=clock) as store:
            yield store


class TestRedisStore(StoreContract):
    @pytest.fixture
    def store(self, redis_url: str) -> Iterator[CheckpointStore]:
        with open_store(redis_url) as store:
            yield store

    @pytest.fixture
    def other_store(self, store: CheckpointStore, redis_url: str) -> Iterator[CheckpointStore]:
        with open_store(redis_url) as other:
            yield other
