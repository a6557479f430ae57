"""Stores in processes that fork, and in calls that an exception interrupts at any point."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

from celery_ckpt import CheckpointStore, FileCheckpointStore, MemoryCheckpointStore, open_store
from celery_ckpt.stores.file import filesystem
from celery_ckpt.testing import make_checkpoint
from tests.support.killed_writers import started

URLS = {"file": "file://{}/store", "sqlite": "sqlite:///{}/store.db"}


def fork_while_saving(url: str, said: Connection) -> None:
    """Fork again and again while threads save. The parent and all children must finish."""
    store, done = open_store(url), threading.Event()
    # Python itself cannot fork while a thread imports a module for the first time.
    store.save(make_checkpoint("parent"))

    def save_until_done() -> None:
        while not done.is_set():
            store.save(make_checkpoint("parent"))

    threads = [threading.Thread(target=save_until_done) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(60, exit=True)  # a child that hangs prints its stacks
            store.save(make_checkpoint("child"))
            os._exit(0)
        said.send(os.waitpid(child, 0)[1])
    done.set()
    for thread in threads:
        thread.join(60)
    said.send([thread.is_alive() for thread in threads])


@pytest.mark.parametrize("kind", ["file", "sqlite", "memory"])
def test_a_fork_while_threads_save_hangs_neither_side(kind: str, tmp_path: Path) -> None:
    url = URLS.get(kind, "memory://").format(tmp_path)
    with started(fork_while_saving, url) as (_, heard):
        assert [heard.recv() for _ in range(15)] == [0] * 15
        assert heard.recv() == [False, False]
    if kind != "memory":
        with open_store(url) as store:
            assert len(store.list("child")) == 15


def keep_a_lock_over_a_fork(directory: str, said: Connection) -> None:
    """Fork while a lock is held. The child lives on and does nothing."""
    with filesystem.locked(Path(directory), exclusive=True):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            signal.pause()
    said.send(child)
    with filesystem.locked(Path(directory), exclusive=True) as is_there:
        said.send(is_there)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_an_idle_forked_child_holds_no_lock(tmp_path: Path) -> None:
    with started(keep_a_lock_over_a_fork, str(tmp_path)) as (_, heard):
        heard.recv()
        assert heard.poll(60), "the lock was not free"
        assert heard.recv() is True


class Interrupt(Exception):
    """Raised at any point, like a soft time limit."""


#: Without a lock: the handler runs anywhere.
_armed = [False]


def _interrupt(signum: int, frame: object) -> None:
    if _armed[0]:
        raise Interrupt


def _save_with_interrupts(store: CheckpointStore, interrupts: int) -> list[str]:
    """Save while a timer interrupts at random times, until there were enough interruptions.
    Return what was saved.
    """
    saved, random = [], Random(1)
    while interrupts:
        checkpoint = make_checkpoint("agent")
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0006))
        try:
            _armed[0] = True
            store.save(checkpoint)
            _armed[0] = False
            saved.append(checkpoint.id)
        except Interrupt:
            _armed[0] = False
            interrupts -= 1
    return saved


def save_with_interrupts(url: str, said: Connection) -> None:
    signal.signal(signal.SIGALRM, _interrupt)
    with open_store(url) as store:
        saved = _save_with_interrupts(store, 500)
        # Another thread must find the store free.
        other = threading.Thread(target=lambda: store.save(make_checkpoint("other")), daemon=True)
        other.start()
        other.join(60)
        said.send((saved, other.is_alive()))


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_an_asynchronous_exception_leaves_the_store_usable(kind: str, tmp_path: Path) -> None:
    url = URLS[kind].format(tmp_path)
    with started(save_with_interrupts, url) as (_, heard):
        saved, hangs = heard.recv()

    assert not hangs
    with open_store(url) as store:
        assert {checkpoint.id for checkpoint in store.list("agent")} >= set(saved)
        assert len(store.list("other")) == 1


def test_a_memory_store_can_be_used_after_a_fork_during_an_operation() -> None:
    store = MemoryCheckpointStore()
    with store._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            thread = threading.Thread(target=lambda: store.save(make_checkpoint()))
            thread.start()
            thread.join()
            os._exit(0 if len(store.list("agent")) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_agent_that_was_deleted_and_recreated_is_a_different_one(tmp_path: Path) -> None:
    """However the file system numbers its files: it reuses the numbers."""
    warm, other = FileCheckpointStore(tmp_path), FileCheckpointStore(tmp_path)
    for _ in range(30):
        for iteration in range(3):
            warm.save(make_checkpoint("agent", iteration=iteration))
        other.delete("agent")
        again = make_checkpoint("agent", iteration=9)
        other.save(again)

        assert warm.load_latest("agent") == again
        later = make_checkpoint("agent", again.conversation, 10)
        warm.save(later)
        assert FileCheckpointStore(tmp_path).list("agent") == [later, again]
        other.delete("agent")
