"""The contract on encrypted records: a store without keys refuses them, and never returns them as data.

The tests need no keys. They write records that look encrypted to a store, and set ``reads_encrypted``
as an ``EncryptedStore`` sets it for the store inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import EncryptionKeyMissing
from celery_ckpt.event_log import LogEntry
from celery_ckpt.messages import Message
from celery_ckpt.records import TEXT_TAG, RunRecord, RunStatus, Step
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encryption_tag import TAG
from celery_ckpt.testing.contract.features import needs
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step

_TEXT = "key.dGV4dA=="
_ENCRYPTED = {TAG: _TEXT}

#: Every method that returns records.
READS: dict[str, Callable[[CheckpointStore], object]] = {
    "load_latest": lambda store: store.load_latest("agent"),
    "load": lambda store: store.load("encrypted"),
    "messages": lambda store: store.messages("encrypted"),
    "list": lambda store: store.list("agent"),
    "history": lambda store: store.history("agent"),
    "steps": lambda store: store.steps("agent", "run"),
    "run": lambda store: store.run("agent", "run"),
    "runs": lambda store: store.runs("agent"),
    "activity": lambda store: store.activity("agent"),
}


def _encrypted_records() -> tuple[Checkpoint, Step, RunRecord]:
    """Return a checkpoint, a step and a run that a store must treat as encrypted."""
    conversation = Conversation(messages=[Message.of(_ENCRYPTED)])
    checkpoint = make_checkpoint("agent", conversation, state=_ENCRYPTED, metadata=_ENCRYPTED)
    step = make_step("agent", "run", "key", name="", value=_ENCRYPTED)
    return (
        checkpoint.model_copy(update={"id": "encrypted"}),
        step,
        make_run("agent", "run", envelope=_ENCRYPTED),
    )


def _write(store: CheckpointStore, checkpoint: Checkpoint, step: Step, run: RunRecord) -> None:
    store.save(checkpoint)
    store.record_step(step)
    store.add_run(run)


class EncryptionContract(ContractFixtures):
    """A store returns encrypted records only to an ``EncryptedStore`` around it."""

    def test_an_encrypted_store_gets_encrypted_records_as_they_are(
        self, store: CheckpointStore
    ) -> None:
        checkpoint, step, run = _encrypted_records()
        store.reads_encrypted = True
        _write(store, checkpoint, step, run)
        assert store.load_latest("agent") == store.load("encrypted") == checkpoint
        assert store.list("agent") == [checkpoint]
        assert [info.metadata for info in store.history("agent")] == [_ENCRYPTED]
        assert store.steps("agent", "run") == [step]
        assert [store.run("agent", "run"), *store.runs("agent")] == [run, run]
        assert store.activity("agent").open == [run]

    @pytest.mark.parametrize("method", READS)
    def test_a_store_without_keys_refuses_encrypted_records(
        self, store: CheckpointStore, method: str
    ) -> None:
        store.reads_encrypted = True
        _write(store, *_encrypted_records())
        store.reads_encrypted = False
        with pytest.raises(EncryptionKeyMissing) as refused:
            READS[method](store)
        assert refused.value.agent_id == "agent"

    def test_an_encrypted_entry_of_the_event_log_is_refused_without_keys(
        self, store: CheckpointStore
    ) -> None:
        needs("log", store)
        data = {"run_id": "run", "name": "tool"}
        entry = LogEntry("call", datetime(2026, 1, 1, tzinfo=UTC), data, encrypted=_TEXT)
        store.reads_encrypted = True
        store.record_step(make_step("agent", "run", "key", name="", value=_ENCRYPTED), log=[entry])
        assert [one.data for one in store.event_log("agent")] == [data]
        store.reads_encrypted = False
        with pytest.raises(EncryptionKeyMissing) as refused:
            store.event_log("agent")
        assert refused.value.agent_id == "agent"

    def test_an_encrypted_run_does_not_start_without_keys(self, store: CheckpointStore) -> None:
        run = make_run("agent", "run", envelope=_ENCRYPTED)
        store.reads_encrypted = True
        store.add_run(run)
        for _ in range(2):
            store.reads_encrypted = False
            with pytest.raises(EncryptionKeyMissing):
                store.start_run(make_run("agent", "run"), "worker", LONG_TTL)
            store.reads_encrypted = True
            assert store.holder("agent") is None, "a worker with the keys can start the run"
        start = store.start_run(run, "worker", LONG_TTL)
        assert start.lease is not None
        assert (start.run.envelope, start.run.stalled) == (_ENCRYPTED, 0)

    def test_an_encrypted_next_run_is_not_returned_without_keys(self, store: CheckpointStore) -> None:
        start = store.start_run(make_run("agent", "first"), "worker", LONG_TTL)
        store.reads_encrypted = True
        store.start_run(make_run("agent", "second", envelope=_ENCRYPTED), "worker", LONG_TTL)
        store.reads_encrypted = False
        ended = start.run.model_copy(update={"status": RunStatus.FAILED})
        with pytest.raises(EncryptionKeyMissing):
            store.settle_run(ended, start.lease)

    def test_plain_data_that_looks_encrypted_is_returned(self, store: CheckpointStore) -> None:
        checkpoint = make_checkpoint("agent", state=_ENCRYPTED)
        step = make_step("agent", "run", "key", name="tool", value=_ENCRYPTED)
        outcome = {"status": RunStatus.SUCCEEDED, "result": _ENCRYPTED, "error": f"{TEXT_TAG}{_TEXT}"}
        run = make_run("agent", "run", envelope={"headers": {}}, **outcome)
        _write(store, checkpoint, step, run)
        assert store.list("agent") == [checkpoint]
        assert store.steps("agent", "run") == [step]
        assert store.runs("agent") == store.activity("agent").open == [run]
