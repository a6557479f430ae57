"""The contract on encrypted records fails for a store that returns them without keys."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ckpt import Checkpoint, MemoryCheckpointStore
from celery_ckpt.errors import EncryptionKeyMissing
from celery_ckpt.records import StartResult
from celery_ckpt.stores.encryption_tag import TAG, plain_run
from celery_ckpt.testing.contract.encryption import READS, EncryptionContract

CONTRACT = EncryptionContract()


def leaking(method: str) -> MemoryCheckpointStore:
    """Return a store with one method that returns encrypted records."""

    def leak(self: MemoryCheckpointStore, *args: Any, **options: Any) -> Any:
        before, self.reads_encrypted = self.reads_encrypted, True
        try:
            return getattr(MemoryCheckpointStore, method)(self, *args, **options)
        finally:
            self.reads_encrypted = before

    store: MemoryCheckpointStore = type("Leaking", (MemoryCheckpointStore,), {method: leak})()
    return store


@pytest.mark.parametrize("method", READS)
def test_a_method_that_returns_encrypted_records_fails(method: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        CONTRACT.test_a_store_without_keys_refuses_encrypted_records(leaking(method), method)


def test_a_store_that_starts_an_encrypted_run_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        CONTRACT.test_an_encrypted_run_does_not_start_without_keys(leaking("start_run"))


def test_a_store_that_keeps_the_lease_of_a_refused_run_fails() -> None:
    class Holding(MemoryCheckpointStore):
        def start_run(self, *args: Any, **options: Any) -> StartResult:
            before, self.reads_encrypted = self.reads_encrypted, True
            start = super().start_run(*args, **options)
            self.reads_encrypted = before
            plain_run(self, start.run)
            return start

    with pytest.raises(AssertionError, match="a worker with the keys can start the run"):
        CONTRACT.test_an_encrypted_run_does_not_start_without_keys(Holding())


def test_a_store_that_returns_an_encrypted_next_run_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        CONTRACT.test_an_encrypted_next_run_is_not_returned_without_keys(leaking("settle_run"))


def test_a_store_that_ignores_reads_encrypted_fails() -> None:
    class Refusing(MemoryCheckpointStore):
        def load(self, checkpoint_id: str) -> Checkpoint | None:
            self.reads_encrypted = False
            return super().load(checkpoint_id)

    with pytest.raises(EncryptionKeyMissing):
        CONTRACT.test_an_encrypted_store_gets_encrypted_records_as_they_are(Refusing())


def test_a_store_that_refuses_plain_data_fails() -> None:
    class Suspicious(MemoryCheckpointStore):
        def list(self, agent_id: str, *, limit: int | None = None) -> list[Checkpoint]:
            found = super().list(agent_id, limit=limit)
            if any(TAG in checkpoint.state for checkpoint in found):
                raise EncryptionKeyMissing(what="A checkpoint", agent_id=agent_id, key_id="?")
            return found

    with pytest.raises(EncryptionKeyMissing):
        CONTRACT.test_plain_data_that_looks_encrypted_is_returned(Suspicious())
