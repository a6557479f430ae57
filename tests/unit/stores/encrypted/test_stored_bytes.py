"""Every key and every file, byte by byte: neither encrypted nor deleted data is readable."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_ckpt import CheckpointStore, Conversation, Entry, open_store
from celery_ckpt.records import RunStatus
from celery_ckpt.testing import make_checkpoint, make_message, make_run, make_step
from tests.support.encryption import encrypted
from tests.support.servers.valkey import Valkey
from tests.support.stored_bytes import MARKER, bytes_of_files, bytes_of_keys, forms, found_in

Look = Callable[[], Iterator[tuple[str, bytes]]]
KINDS = ("file", "sqlite", "redis")


@pytest.fixture(params=KINDS)
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, valkey: Valkey
) -> Iterator[tuple[CheckpointStore, Look]]:
    """Return a store, and a function that reads everything that it keeps."""
    if request.param == "redis":
        with open_store(request.getfixturevalue("redis_url")) as store, valkey.client() as client:
            yield store, lambda: bytes_of_keys(client)
        return
    urls = {"file": f"file://{tmp_path}/store", "sqlite": f"sqlite:///{tmp_path}/store.db"}
    with open_store(urls[request.param]) as store:
        yield store, lambda: bytes_of_files(tmp_path)


def work(store: CheckpointStore, agent_id: str = "agent") -> None:
    """Save everything that an agent can have, with the marker wherever possible."""
    text = f"this is {MARKER}, you know"
    conversation = Conversation(messages=[make_message(f"{text} {n}") for n in range(5)])
    entry = Entry(conversation=conversation, state={"e": text})
    run = make_run(agent_id, "run", envelope={"args": [text]}, task="task")
    store.add_run(run, due_in=30)
    start = store.start_run(run, "worker", 30)
    given: dict[str, Any] = {"state": {text: text}, "metadata": {"m": text}, "run_id": "run"}
    store.record_step(make_step(agent_id, "run", text, name=text, value=[text]), start.lease)
    store.save(make_checkpoint(agent_id, conversation, 1, entry=entry, **given), start.lease)
    conversation.replace([make_message(f"in short, {text}"), *conversation.messages[-2:]])
    ended = start.run.model_copy(update={"status": RunStatus.SUCCEEDED, "result": text, "error": text})
    store.save(make_checkpoint(agent_id, conversation, 2, **given), start.lease, run=ended)
    store.settle_run(ended.model_copy(update={"delivered": True}), start.lease)
    assert store.load_latest(agent_id) is not None


def places(look: Look, text: str = MARKER) -> list[str]:
    return [name for name, data in look() if found_in(data, text)]


def test_encrypted_text_appears_in_no_key_and_no_file(opened: tuple[CheckpointStore, Look]) -> None:
    store, look = opened
    work(encrypted(store))
    assert list(look()), "there is something to look at"
    assert places(look) == []


def test_the_search_finds_unencrypted_text(opened: tuple[CheckpointStore, Look]) -> None:
    store, look = opened
    work(store)
    assert places(look) != []


def test_a_deleted_agent_appears_in_no_key_and_no_file(opened: tuple[CheckpointStore, Look]) -> None:
    store, look = opened
    work(store, "harriet-7")
    store.prune("harriet-7", 1)
    other = make_checkpoint("other", Conversation(messages=[make_message("who stays")]))
    store.save(other)
    assert places(look) != []

    store.delete("harriet-7")

    assert places(look) == []
    assert places(look, "who stays") != []
    # The schedule has the name too. The next claim finds no such agent, and removes the entry.
    assert store.unschedule({"harriet-7": store.schedule("harriet-7", 0)}) == 1
    assert store.delete("other") == 1
    assert places(look, "harriet-7") == []


def test_the_search_finds_every_encoding_of_a_text() -> None:
    assert all(found_in(b"before" + form + b"after") for form in forms())
    for length in range(4):
        assert found_in(base64.b64encode(b"y" * length + MARKER.encode() + b"behind"))
