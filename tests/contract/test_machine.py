"""Random sequences of operations: each store must return what the memory store returns."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from redis import Redis

from celery_ckpt import CheckpointStore, FileCheckpointStore, SqliteCheckpointStore, open_store
from celery_ckpt.testing import StoreMachine

#: For a long run: CKPT_MACHINE_EXAMPLES=1000 make test ARGS=tests/contract/test_machine.py
EXAMPLES = int(os.environ.get("CKPT_MACHINE_EXAMPLES", "25"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class FileMachine(StoreMachine):
    records_changes = True

    def open(self) -> CheckpointStore:
        self.directory = tempfile.TemporaryDirectory()
        return FileCheckpointStore(self.directory.name)

    def reopen(self, store: CheckpointStore) -> CheckpointStore:
        return FileCheckpointStore(self.directory.name)

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


class SqliteMachine(FileMachine):
    def open(self) -> CheckpointStore:
        self.directory = tempfile.TemporaryDirectory()
        return self._opened()

    def reopen(self, store: CheckpointStore) -> CheckpointStore:
        store.close()
        return self._opened()

    def _opened(self) -> CheckpointStore:
        return SqliteCheckpointStore.open(Path(self.directory.name) / "store.db")


class RedisMachine(StoreMachine):
    records_changes = True
    url: str

    def open(self) -> CheckpointStore:
        with Redis.from_url(self.url) as client:
            client.flushdb()
        return open_store(self.url)

    def reopen(self, store: CheckpointStore) -> CheckpointStore:
        store.close()
        return open_store(self.url)


class TestFileStore(FileMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = SETTINGS


class TestSqliteStore(SqliteMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = SETTINGS


class TestRedisStore(RedisMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = SETTINGS

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        RedisMachine.url = redis_url
