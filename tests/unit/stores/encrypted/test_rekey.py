"""A new key for everything that is stored: nothing is lost, and no running agent is disturbed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from celery_ckpt import CheckpointStore, Conversation, Entry, FileCheckpointStore, open_store
from celery_ckpt.errors import (
    AgentNotFound,
    CheckpointDamaged,
    EncryptionKeyMissing,
    LeaseHeld,
    LeaseLost,
    NotEncrypted,
    StoreError,
)
from celery_ckpt.records import AgentContents, RunStatus
from celery_ckpt.stores.encrypted.rekey import Rekeyed
from celery_ckpt.stores.file import directory, filesystem, journal, record_table
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing import make_checkpoint, make_message, make_run, make_step
from celery_ckpt.testing.factories import changed_contents
from tests.support.encryption import NEW, OLD, OTHER, encrypted
from tests.support.stored_bytes import MARKER, bytes_of_files, found_in


def work(store: CheckpointStore, agent_id: str = "agent") -> Conversation:
    """Save three checkpoints, two steps and a run."""
    conversation = Conversation(messages=[make_message(f"{MARKER} {n}") for n in range(3)])
    entry = Entry(conversation=conversation, state={"e": MARKER})
    given: dict[str, Any] = {"state": {"s": MARKER}, "metadata": {"m": MARKER, "pin": "label"}}
    for number in range(3):
        conversation.append(make_message(f"{MARKER} turn {number}"))
        store.save(make_checkpoint(agent_id, conversation, number, entry=entry, **given))
    run = make_run(agent_id, "run", envelope={"e": MARKER}, error=MARKER, result=MARKER)
    store.add_run(run.model_copy(update={"status": RunStatus.FAILED}))
    for key in ("a", "b"):
        store.record_step(make_step(agent_id, "run", key, value=MARKER))
    return conversation


def everything(store: CheckpointStore, agent_id: str = "agent") -> list[Any]:
    history = [info.model_copy(update={"seq": 0}) for info in store.history(agent_id)]
    records = [*store.steps(agent_id, "run"), *store.runs(agent_id)]
    return [*store.list(agent_id), *history, *records]


def test_after_a_rekey_the_old_key_is_not_needed(inner: CheckpointStore) -> None:
    work(encrypted(inner, OLD))
    before = everything(encrypted(inner, OLD))

    assert encrypted(inner, NEW, OLD).rekey("agent") == Rekeyed(3, 2, 1)

    assert everything(encrypted(inner, NEW)) == before
    with pytest.raises(EncryptionKeyMissing):
        encrypted(inner, OLD).load_latest("agent")
    assert encrypted(inner, NEW).rekey("agent") == Rekeyed(), "there is nothing left to do"
    assert inner.holder("agent") is None


def test_a_plain_store_becomes_an_encrypted_one(inner: CheckpointStore) -> None:
    work(inner)
    before = everything(inner)
    store = encrypted(inner, NEW)
    with pytest.raises(NotEncrypted):
        store.rekey("agent")
    assert everything(inner) == before

    assert store.rekey("agent", from_plaintext=True) == Rekeyed(3, 2, 1)

    assert everything(store) == before
    stored = "".join(one.model_dump_json() for one in [*inner.list("agent"), *inner.runs("agent")])
    assert found_in(stored.encode()) == []


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_no_file_contains_the_plain_text_afterwards(kind: str, tmp_path: Path) -> None:
    urls = {"file": f"file://{tmp_path}/store", "sqlite": f"sqlite:///{tmp_path}/store.db"}
    with open_store(urls[kind]) as inner:
        work(inner)
        encrypted(inner, NEW).rekey("agent", from_plaintext=True)
        assert [name for name, data in bytes_of_files(tmp_path) if found_in(data)] == []


def test_a_conversation_encrypted_with_two_keys_uses_one_afterwards(inner: CheckpointStore) -> None:
    work(encrypted(inner, OLD))
    both = encrypted(inner, NEW, OLD)
    loaded = both.load_latest("agent")
    assert loaded is not None
    going_on = loaded.conversation
    going_on.append(make_message("with the new key"))
    both.save(make_checkpoint("agent", going_on))

    assert both.rekey("agent") == Rekeyed(4, 2, 1), "the last one contains messages from before"

    assert len(encrypted(inner, NEW).list("agent")) == 4


def test_a_step_encrypted_with_two_keys_exists_once_afterwards(inner: CheckpointStore) -> None:
    work(encrypted(inner, OLD))
    for key, value in (("b", MARKER), ("c", "new"), ("a", "recorded later")):
        encrypted(inner, NEW).record_step(make_step("agent", "run", key, value=value))
    both = encrypted(inner, NEW, OLD)
    before = everything(both)
    steps = both.steps("agent", "run")
    assert [(step.key, step.value) for step in steps] == [("a", MARKER), ("b", MARKER), ("c", "new")]

    assert both.rekey("agent") == Rekeyed(3, 2, 1)

    assert everything(encrypted(inner, NEW)) == before
    assert len(inner.steps("agent", "run")) == 3
    assert encrypted(inner, NEW).rekey("agent") == Rekeyed(), "there is nothing left to do"


def test_a_dry_run_changes_nothing_even_for_a_busy_agent(inner: CheckpointStore) -> None:
    work(encrypted(inner, OLD))
    inner.acquire("agent", "worker", 60)
    assert encrypted(inner, NEW, OLD).rekey("agent", dry_run=True) == Rekeyed(3, 2, 1)
    assert everything(encrypted(inner, OLD))


def test_a_busy_agent_is_left_unchanged(inner: CheckpointStore) -> None:
    conversation, store = work(encrypted(inner, OLD)), encrypted(inner, OLD)
    lease = store.acquire("agent", "worker", 60)
    before = everything(store)
    with pytest.raises(LeaseHeld):
        encrypted(inner, NEW, OLD).rekey("agent")
    assert everything(store) == before
    conversation.append(make_message("on and on"))
    store.save(make_checkpoint("agent", conversation), lease)


def test_a_worker_that_was_presumed_dead_cannot_write_with_the_old_key() -> None:
    inner = MemoryCheckpointStore()
    conversation, store = work(encrypted(inner, OLD)), encrypted(inner, OLD)
    lease = store.acquire("agent", "worker", 60)
    inner.release(inner.acquire("agent", "watchdog", 60, over=lease))
    encrypted(inner, NEW, OLD).rekey("agent")
    conversation.append(make_message("late"))
    with pytest.raises(LeaseLost):
        store.save(make_checkpoint("agent", conversation), lease)


def test_rekeying_an_unknown_agent_does_not_create_it() -> None:
    inner = MemoryCheckpointStore()
    with pytest.raises(AgentNotFound):
        encrypted(inner, NEW).rekey("agent")
    assert list(inner.agents()) == []


def test_an_agent_with_a_damaged_checkpoint_is_left_unchanged() -> None:
    inner = MemoryCheckpointStore()
    work(encrypted(inner, OLD))
    latest = inner.load_latest("agent")
    assert latest is not None
    inner.remove("agent", [latest.id])
    inner.save(latest.model_copy(update={"iteration": 7}))
    before = inner.list("agent")
    with pytest.raises(CheckpointDamaged):
        encrypted(inner, NEW, OLD).rekey("agent")
    assert inner.list("agent") == before
    assert inner.holder("agent") is None


def test_without_the_old_key_nothing_is_changed() -> None:
    inner = MemoryCheckpointStore()
    work(encrypted(inner, OLD))
    with pytest.raises(EncryptionKeyMissing, match="'old'"):
        encrypted(inner, NEW, OTHER).rekey("agent")
    assert everything(encrypted(inner, OLD))


# -- rewriting, in Redis and in files ----------------------------------------------------------------

CHANGES: dict[str, Callable[[CheckpointStore], object]] = {
    "a save": lambda store: store.save(make_checkpoint("agent")),
    "a removal": lambda store: store.prune("agent", 1),
    "a step": lambda store: store.record_step(make_step("agent", "run", "late")),
    "a step gone": lambda store: store.drop_steps("agent", "run"),
    "a run": lambda store: store.add_run(make_run("agent", "late")),
    "a run changed": lambda store: store.update_run(
        store.runs("agent")[0].model_copy(update={"retries": 3})
    ),
    "a deletion": lambda store: store.delete("agent"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_rekey_in_redis_does_not_overwrite_concurrent_changes(how: str, redis_url: str) -> None:
    with open_store(redis_url) as store, open_store(redis_url) as other:
        work(store)

        def interrupted(contents: AgentContents) -> AgentContents:
            CHANGES[how](other)
            return changed_contents(contents)

        assert not store.rewrite("agent", interrupted)
        assert not any("loud" in checkpoint.metadata for checkpoint in other.list("agent"))
        assert not any(run.envelope.get("was") for run in other.runs("agent"))


def test_a_long_history_is_rewritten_in_redis(redis_url: str) -> None:
    with open_store(redis_url) as inner:
        conversation, store = Conversation(), encrypted(inner, OLD)
        for number in range(1500):
            conversation.append(make_message(f"message {number}"))
            if number % 100 == 99:
                store.save(make_checkpoint("agent", conversation))
        before = store.list("agent")
        assert encrypted(inner, NEW, OLD).rekey("agent") == Rekeyed(15)
        assert encrypted(inner, NEW).list("agent") == before
        with inner._server.client.pipeline() as client:  # type: ignore[attr-defined]
            [length] = client.llen("ckpt:{agent}:log").execute()
        assert length == 1500, "each message once"


@pytest.mark.parametrize("after", range(5))
def test_a_crash_between_two_file_writes_loses_nothing(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(encrypted(FileCheckpointStore(tmp_path), OLD))
    before = everything(encrypted(FileCheckpointStore(tmp_path), OLD))
    left = after

    def crashing(path: Path, data: bytes) -> None:
        nonlocal left
        if left == 0:
            raise OSError("the machine has failed")
        left -= 1
        replace(path, data)

    replace = filesystem.replace
    with monkeypatch.context() as patch:
        for module in (directory, journal, record_table):
            patch.setattr(module, "replace", crashing)
        with suppress(StoreError):
            encrypted(FileCheckpointStore(tmp_path), NEW, OLD).rekey("agent")

    assert everything(encrypted(FileCheckpointStore(tmp_path), NEW, OLD)) == before
    lease = FileCheckpointStore(tmp_path).holder("agent")
    if lease is not None:
        FileCheckpointStore(tmp_path).release(lease)
    encrypted(FileCheckpointStore(tmp_path), NEW, OLD).rekey("agent")
    assert everything(encrypted(FileCheckpointStore(tmp_path), NEW)) == before
