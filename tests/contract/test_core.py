"""A store that implements only the abstract methods keeps every promise, without optional features."""

from __future__ import annotations

import pytest

from celery_ckpt import CheckpointStore, MemoryCheckpointStore
from celery_ckpt.errors import FeatureMissing
from celery_ckpt.testing import FakeClock, StoreContract, StoreMachine, make_checkpoint
from tests.contract.test_encrypted_stores import SETTINGS
from tests.support.encryption import encrypted


class CoreStore(MemoryCheckpointStore):
    features = frozenset()


#: The methods that the protocol implements on top of others.
DEFAULTS = (
    "load_latest",
    "messages",
    "prune",
    "holder",
    "renew_many",
    "record_and_save",
    "run",
    "last_run",
    "run_outlines",
    "outline",
    "page",
    "reschedule",
    "count_watchdogs",
    "pin",
    "rewrite",
    "event_log",
    "note",
    "follow",
    "stream",
)
for name in DEFAULTS:
    setattr(CoreStore, name, vars(CheckpointStore)[name])


def test_nothing_else_has_a_default() -> None:
    named = {*DEFAULTS, "findings", "risks", "close"}
    public = {
        name for name, it in vars(CheckpointStore).items() if callable(it) and not name.startswith("_")
    }
    assert public - CheckpointStore.__abstractmethods__ == named


class TestCoreStore(StoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> CheckpointStore:
        return CoreStore(clock=clock)


class CoreMachine(StoreMachine):
    def open(self) -> CheckpointStore:
        return CoreStore()


class TestMachine(CoreMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = SETTINGS


def test_a_store_that_cannot_rewrite_cannot_be_rekeyed() -> None:
    store = encrypted(CoreStore())
    store.save(make_checkpoint("agent"))
    with pytest.raises(
        FeatureMissing, match="CoreStore does not have the feature 'rewrite'"
    ) as missing:
        store.rekey("agent")
    assert (missing.value.store, missing.value.feature) == ("CoreStore", "rewrite")
    assert store.holder("agent") is None
