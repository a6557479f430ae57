"""An encrypted store keeps every promise of a store, whatever store it is around."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from redis import Redis

from celery_ckpt import FileCheckpointStore, SqliteCheckpointStore, open_store
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.stores.wrapper import WrapperStore
from celery_ckpt.testing import FakeClock, StoreContract, StoreMachine
from celery_ckpt.testing.contract.checkpoints import CheckpointsContract
from celery_ckpt.testing.contract.encryption import EncryptionContract
from celery_ckpt.testing.contract.event_log import EventLogContract
from celery_ckpt.testing.contract.findings import FindingsContract
from celery_ckpt.testing.contract.policies import PoliciesContract
from celery_ckpt.testing.contract.rewrite import RewriteContract
from celery_ckpt.testing.contract.runs import RunsContract
from celery_ckpt.testing.contract.steps import StepsContract
from celery_ckpt.testing.contract.turns import TurnsContract
from tests.support.encryption import NEW, OLD, encrypted

SETTINGS = settings(
    max_examples=10, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class OnMemory(StoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def inner(self, clock: FakeClock) -> CheckpointStore:
        return MemoryCheckpointStore(clock=clock)


class TestEncryptedStore(OnMemory):
    @pytest.fixture
    def store(self, inner: CheckpointStore) -> CheckpointStore:
        return encrypted(inner)

    @pytest.fixture
    def other_store(self, inner: CheckpointStore) -> CheckpointStore:
        return encrypted(inner)


class EncryptedParts(
    CheckpointsContract,
    RewriteContract,
    PoliciesContract,
    FindingsContract,
    StepsContract,
    RunsContract,
    TurnsContract,
    EventLogContract,
    EncryptionContract,
):
    """The parts of the contract about what is encrypted.

    The store passes names, leases, due times and plans on unchanged. ``TestEncryptedStore`` tests these
    parts too, on the memory store, which is fast.
    """


class TestEncryptedFileStore(EncryptedParts):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock, tmp_path: Path) -> CheckpointStore:
        return encrypted(FileCheckpointStore(tmp_path / "store", clock=clock))

    @pytest.fixture
    def other_store(self, clock: FakeClock, tmp_path: Path) -> CheckpointStore:
        return encrypted(FileCheckpointStore(tmp_path / "store", clock=clock))


class TestEncryptedSqliteStore(EncryptedParts):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock, tmp_path: Path) -> Iterator[CheckpointStore]:
        with SqliteCheckpointStore.open(tmp_path / "store.db", clock=clock) as inner:
            yield encrypted(inner)

    @pytest.fixture
    def other_store(
        self, store: CheckpointStore, clock: FakeClock, tmp_path: Path
    ) -> Iterator[CheckpointStore]:
        with SqliteCheckpointStore.open(tmp_path / "store.db", clock=clock) as inner:
            yield encrypted(inner)


class TestEncryptedRedisStore(EncryptedParts):
    @pytest.fixture
    def store(self, redis_url: str) -> Iterator[CheckpointStore]:
        with open_store(redis_url) as inner:
            yield encrypted(inner)

    @pytest.fixture
    def other_store(self, store: CheckpointStore, redis_url: str) -> Iterator[CheckpointStore]:
        with open_store(redis_url) as inner:
            yield encrypted(inner)


class TestAfterARotation(OnMemory):
    """One process has the new key already, another one still encrypts with the old."""

    @pytest.fixture
    def store(self, inner: CheckpointStore) -> CheckpointStore:
        return encrypted(inner, OLD, NEW)

    @pytest.fixture
    def other_store(self, inner: CheckpointStore) -> CheckpointStore:
        return encrypted(inner, NEW, OLD)


class EncryptedMachine(StoreMachine):
    records_changes = True

    def open(self) -> CheckpointStore:
        self.inner = MemoryCheckpointStore()
        return encrypted(self.inner)

    def reopen(self, store: CheckpointStore) -> CheckpointStore:
        return encrypted(self.inner)


class TestMachine(EncryptedMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = SETTINGS


class EncryptedRedisMachine(EncryptedMachine):
    url: str

    def open(self) -> CheckpointStore:
        with Redis.from_url(self.url) as client:
            client.flushdb()
        self.inner = open_store(self.url)
        return encrypted(self.inner)


class TestMachineOnRedis(EncryptedRedisMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(SETTINGS, max_examples=5)

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        EncryptedRedisMachine.url = redis_url


def test_a_wrapper_store_implements_every_method_of_the_protocol() -> None:
    promised = {
        name
        for name, what in vars(CheckpointStore).items()
        if inspect.isfunction(what) and not name.startswith("_")
    }
    assert promised - vars(WrapperStore).keys() == set()
