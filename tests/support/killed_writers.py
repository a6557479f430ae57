"""Processes that save checkpoints until they are killed, and report each save."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from random import Random
from typing import Any

from celery_ckpt import CheckpointStore, Conversation, open_store
from celery_ckpt.testing import make_checkpoint, make_message

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["celery_ckpt.testing", "celery_ckpt.stores.file", "celery_ckpt.stores.sqlite"]
)

Acknowledged = tuple[str, str]


def save_for_ever(url: str, seed: int, said: Connection) -> None:
    """Continue from the latest checkpoint, save forever, and report each checkpoint after its save."""
    random = Random(seed)
    with open_store(url) as store:
        latest = store.load_latest("agent")
        conversation = latest.conversation if latest else Conversation()
        while True:
            for _ in range(random.randrange(1, 4)):
                conversation.append(make_message("x" * random.randrange(3000)))
            if len(conversation) > 60:
                conversation.replace(conversation.messages[-10:])
            checkpoint = make_checkpoint("agent", conversation)
            store.save(checkpoint)
            said.send((checkpoint.id, conversation.digest))


def killed_while_saving(url: str, seed: int, after: int) -> list[Acknowledged]:
    """Start such a process and kill it after ``after`` saves or more; return what it has reported."""
    with started(save_for_ever, url, seed) as (process, heard):
        acknowledged = [heard.recv() for _ in range(after)]
        # The kill hits it at any point of a later save.
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(10)
        assert process.exitcode == -signal.SIGKILL
        while heard.poll():
            try:
                acknowledged.append(heard.recv())
            except EOFError:
                break
    return acknowledged


@contextmanager
def started(target: Any, *args: Any) -> Iterator[tuple[ForkServerProcess, Connection]]:
    """Run a function in a process of its own, with a pipe for its reports."""
    heard, said = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=target, args=(*args, said), daemon=True)
    process.start()
    said.close()
    try:
        yield process, heard
    finally:
        process.kill()
        process.join(10)
        heard.close()


def assert_nothing_is_missing(store: CheckpointStore, acknowledged: list[Acknowledged]) -> None:
    """Assert that the latest checkpoint is complete, and acknowledged ones load as they were saved."""
    listed = {checkpoint.id: checkpoint.conversation.digest for checkpoint in store.list("agent")}
    assert listed.items() >= dict(acknowledged).items()
    latest = store.load_latest("agent")
    assert latest is not None
    assert latest.id in listed
