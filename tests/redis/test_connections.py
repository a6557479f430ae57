"""Many threads share few connections: they wait for each other, and the store is never reported
as down.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, LifoQueue

import pytest

from celery_ckpt import CheckpointStore, open_store
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.stores.redis.connections import _Connections
from tests.support.redis_agents import work
from tests.support.servers.valkey import LOOPBACK, Valkey, cluster, guarded, wait_until

MANY = 150
PATIENT = "socket_timeout=60"


@contextmanager
def holding_writes(server: Valkey) -> Iterator[None]:
    """Make the server hold every write inside the block, so that each connection with a write
    stays in use.
    """
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        yield
        client.execute_command("CLIENT", "UNPAUSE")


def connections(server: Valkey) -> int:
    with server.client() as client:
        return len(client.client_list()) - 1


def leased(store: CheckpointStore, threads: ThreadPoolExecutor, count: int) -> list[Future[object]]:
    return [threads.submit(store.acquire, f"agent {number}", "me", 60) for number in range(count)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    """A server without other clients."""
    with Valkey(tmp_path) as server:
        yield server


@pytest.mark.parametrize(("options", "at_most"), [(PATIENT, 100), (f"{PATIENT}&max_connections=3", 3)])
def test_more_threads_than_connections_can_write_concurrently(
    server: Valkey, options: str, at_most: int
) -> None:
    with open_store(f"{server.url}?{options}") as store, ThreadPoolExecutor(MANY) as threads:
        with holding_writes(server):
            leases = leased(store, threads, MANY)
            # The client that holds the writes is a connection too.
            wait_until("all connections are in use", lambda: connections(server) == at_most + 1)
        assert len({future.result(timeout=60) for future in leases}) == MANY
        assert connections(server) == at_most


def test_the_error_about_an_exhausted_pool_says_what_to_do(server: Valkey) -> None:
    url = f"{server.url}?{PATIENT}&max_connections=1&timeout=0.1"
    with open_store(url) as store, ThreadPoolExecutor(1) as threads:
        with holding_writes(server):
            [first] = leased(store, threads, 1)
            wait_until("the connection is in use", lambda: connections(server) == 2)
            with pytest.raises(StoreUnavailable, match=r"all 1 connections.*larger max_connections"):
                store.load_latest("agent")
        first.result(timeout=60)
        assert store.load_latest("agent") is None


def test_a_thread_keeps_waiting_while_other_threads_return_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = _Connections(2)
    waits = iter([2, 1, 0])

    def get(self: LifoQueue[object], block: bool, timeout: float) -> object:
        # Another thread returned a connection in time, and a third thread was quicker to take it.
        queue.taken += (left := next(waits)) > 0
        if left:
            raise Empty
        return "connection"

    monkeypatch.setattr(LifoQueue, "get", get)
    assert queue.get(timeout=0.1) == "connection"


def test_threads_wait_for_connections_to_cluster_nodes(tmp_path: Path) -> None:
    with (
        cluster(tmp_path) as nodes,
        open_store(f"redis+cluster://{LOOPBACK}:{nodes[0].port}?max_connections=2") as store,
        ThreadPoolExecutor(MANY) as threads,
    ):
        saved = [threads.submit(work, store, f"agent {number}", 2) for number in range(MANY)]
        assert [len(future.result(timeout=120)) for future in saved] == [2] * MANY


def test_threads_wait_for_connections_to_the_sentinel_master(tmp_path: Path) -> None:
    with (
        guarded(tmp_path) as servers,
        open_store(f"{servers.url}?max_connections=2") as store,
        ThreadPoolExecutor(MANY) as threads,
    ):
        saved = [threads.submit(work, store, f"agent {number}", 2) for number in range(MANY)]
        assert [len(future.result(timeout=120)) for future in saved] == [2] * MANY
        servers.lose_master()
        assert len(work(store, "agent 1", 1)) == 1
