"""Many concurrent writers: whatever was saved and not pruned loads back exactly as it was saved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from celery_ckpt import Checkpoint, CheckpointStore, RedisCheckpointStore, open_store
from tests.support.redis_agents import work
from tests.support.redis_writers import Writer, another_process, save_among_others

SAVES = 80


def assert_exact(store: CheckpointStore, saved: dict[str, Checkpoint]) -> None:
    """Assert that everything stored was saved, and that every way of reading returns what was saved."""
    for one in store.list("agent"):
        assert one == saved[one.id]
    for info in store.history("agent")[::7]:
        assert store.load(info.id) == saved[info.id]
    latest = store.load_latest("agent")
    assert latest == saved[latest.id]


@pytest.mark.parametrize("shared", [True, False], ids=["one store", "a store each"])
def test_concurrent_threads_save_exactly(store, redis_url: str, shared: bool) -> None:
    def write(seed: int) -> list[Checkpoint]:
        if shared:
            return list(Writer(store, "agent", seed).work(SAVES))
        with open_store(redis_url) as own:
            return list(Writer(own, "agent", seed).work(SAVES))

    with ThreadPoolExecutor() as threads:
        saved = {one.id: one for each in threads.map(write, range(4)) for one in each}
    assert_exact(store, saved)
    assert {info.id for info in store.history("agent")} == saved.keys()


def test_concurrent_processes_and_threads_save_exactly(
    store: RedisCheckpointStore, redis_url: str, tmp_path: Path
) -> None:
    save_logs = [tmp_path / str(seed) for seed in range(3)]
    with ExitStack() as running:
        processes = [
            running.enter_context(
                another_process(save_among_others, redis_url, "agent", seed, SAVES, path)
            )
            for seed, path in enumerate(save_logs)
        ]
        saved = {one.id: one for one in Writer(store, "agent", 99).work(SAVES)}
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
    for path in save_logs:
        checkpoints = map(Checkpoint.from_bytes, path.read_bytes().splitlines())
        saved.update({one.id: one for one in checkpoints})
    assert_exact(store, saved)
    assert {info.id for info in store.history("agent")} == saved.keys()


def test_checkpoints_kept_by_concurrent_pruning_are_exact(store, redis_url: str) -> None:
    done = Event()

    def prune(keep: int) -> None:
        with open_store(redis_url) as own:
            while not done.is_set():
                own.prune("agent", keep)

    def write(seed: int) -> list[Checkpoint]:
        return list(Writer(store, "agent", seed).work(SAVES))

    with ThreadPoolExecutor() as threads:
        pruners = [threads.submit(prune, keep) for keep in (0, 3, 5)]
        try:
            saved = {one.id: one for each in threads.map(write, range(3)) for one in each}
        finally:
            done.set()
        for pruner in pruners:
            pruner.result()
    store.save(Checkpoint.new("agent", next(iter(saved.values())).conversation, 1))
    store.prune("agent", 5)
    [latest, *rest] = store.list("agent")
    assert store.load_latest("agent") == latest
    assert all(one == saved[one.id] for one in rest)


def test_concurrent_removals_never_lose_the_latest(store, redis_url: str) -> None:
    """Each process removes a different part of the same agent. The newest checkpoint that
    remains is the latest.
    """
    stores = [open_store(redis_url) for _ in range(4)]
    with ExitStack() as opened, ThreadPoolExecutor() as threads:
        for each in stores:
            opened.enter_context(each)
        for _ in range(20):
            saved = work(store, "agent", 9)
            parts = [[one.id] for one in saved[5:]]
            removed = threads.map(lambda each, ids: each.remove("agent", ids), stores, parts)
            assert sum(removed) == 4
            assert store.load_latest("agent") == saved[4]
