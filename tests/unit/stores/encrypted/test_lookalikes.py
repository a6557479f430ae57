"""Plain data that looks like encrypted data is data like any other."""

from __future__ import annotations

from typing import Any

from celery_ckpt import CheckpointStore
from celery_ckpt.records import RunStatus
from celery_ckpt.stores.encryption_tag import TAG, TEXT_TAG
from celery_ckpt.testing import make_checkpoint, make_run, make_step
from tests.support.encryption import OLD, encrypted, keyless

LOOKALIKE = {TAG: "old.bm90IHNlYWxlZA=="}


def fill(store: CheckpointStore) -> None:
    """Store such data wherever an agent can keep data."""
    store.save(make_checkpoint("agent", state=LOOKALIKE))
    store.record_step(make_step("agent", "run", "key", name="tool", value=LOOKALIKE))
    run = make_run("agent", "run", envelope={"headers": {}}, status=RunStatus.SUCCEEDED)
    ended = {"result": LOOKALIKE, "error": f"{TEXT_TAG}{LOOKALIKE[TAG]}"}
    store.add_run(run.model_copy(update=ended))


def everything(store: CheckpointStore) -> list[Any]:
    records = [*store.steps("agent", "run"), *store.runs("agent"), *store.activity("agent").open]
    return [store.load_latest("agent"), *store.list("agent"), *records]


def test_without_keys_text_that_looks_encrypted_is_plain_data(inner: CheckpointStore) -> None:
    fill(inner)
    inner.reads_encrypted = True
    stored = everything(inner)
    assert everything(keyless(inner)) == stored


def test_text_that_looks_encrypted_is_encrypted_with_the_rest_of_a_plain_store(
    inner: CheckpointStore,
) -> None:
    fill(inner)
    plain = everything(inner)
    assert encrypted(inner, OLD).rekey("agent", from_plaintext=True) == (1, 1, 1)
    assert everything(encrypted(inner, OLD)) == plain
