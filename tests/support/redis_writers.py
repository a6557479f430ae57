"""Functions for other processes, which are forked from one that has imported the package."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

from celery_ckpt import Checkpoint, CheckpointStore, Conversation, open_store
from celery_ckpt.errors import LeaseError
from tests.support.redis_agents import line

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["celery_ckpt.stores.redis"])


@contextmanager
def another_process(target: Callable[..., None], *args: Any) -> Iterator[BaseProcess]:
    """Run a function in a process of its own, and kill it after the block if it still runs."""
    process = _PROCESSES.Process(target=_run, args=(target, *args))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def _run(target: Callable[..., None], *args: Any) -> None:
    Thread(target=_die_with_the_test, daemon=True).start()
    target(*args)


def _die_with_the_test() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def save_for_ever(url: str, agent_id: str, acknowledged: Path) -> None:
    """Continue an agent forever; write down each id after its save has returned."""
    with open_store(url) as store, acknowledged.open("ab", buffering=0) as notes:
        latest = store.load_latest(agent_id)
        conversation = latest.conversation if latest else Conversation()
        while True:
            iteration = len(conversation) + 1
            conversation.append(line(agent_id, iteration))
            checkpoint = Checkpoint.new(agent_id, conversation, iteration)
            store.save(checkpoint)
            notes.write(f"{checkpoint.id}\n".encode())


def save_among_others(url: str, agent_id: str, seed: int, saves: int, notes: Path) -> None:
    """Save in every possible way, concurrently with others; write down what was saved."""
    with open_store(url) as store, notes.open("ab", buffering=0) as file:
        for checkpoint in Writer(store, agent_id, seed).work(saves):
            file.write(checkpoint.to_bytes() + b"\n")


class Writer:
    """Appends, goes back, compacts, and loads what others saved; with and without leases."""

    def __init__(self, store: CheckpointStore, agent_id: str, seed: int) -> None:
        self._store, self._agent_id, self._chance = store, agent_id, Random(seed)
        self._name = f"writer {seed}"
        self._conversation = Conversation()
        self._said = 0

    def work(self, saves: int) -> Iterator[Checkpoint]:
        """Save this number of times; yield each checkpoint that was saved."""
        for _ in range(saves):
            self._turn()
            checkpoint = Checkpoint.new(self._agent_id, self._conversation, self._said)
            if self._save(checkpoint):
                yield checkpoint

    def _turn(self) -> None:
        act = self._chance.choice(
            [self._say, self._say, self._say, self._go_back, self._compact, self._take_up]
        )
        act()
        self._say()

    def _say(self) -> None:
        self._said += 1
        self._conversation.append(line(self._name, self._said))

    def _go_back(self) -> None:
        self._conversation.replace(self._conversation.messages[:-2])

    def _compact(self) -> None:
        kept = self._conversation.messages[self._chance.randrange(8) :]
        self._conversation.replace([line(self._name, -self._said), *kept])

    def _take_up(self) -> None:
        latest = self._store.load_latest(self._agent_id)
        if latest is not None:
            self._conversation = latest.conversation

    def _save(self, checkpoint: Checkpoint) -> bool:
        """Save, and return False if another writer holds the lease, so that nothing was saved."""
        try:
            if self._chance.random() < 0.5:
                self._store.save(checkpoint)
                return True
            lease = self._store.acquire(self._agent_id, self._name, 0.005)
            self._store.save(checkpoint, lease)
            self._store.release(lease)
        except LeaseError:
            return False
        return True
