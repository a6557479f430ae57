"""A server that is no longer the master: no store stays connected to it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import BlockingConnectionPool, Redis

from celery_ckpt import CheckpointStore, RedisCheckpointStore, open_store
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.store import Durability
from tests.support.redis_agents import work
from tests.support.servers.proxies import Proxy
from tests.support.servers.replicas import Pair, replicated
from tests.support.servers.valkey import LOOPBACK, guarded, wait_until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with replicated(tmp_path) as pair:
        yield pair


@pytest.fixture
def address(pair: Pair) -> Iterator[Proxy]:
    """An address that leads to the current master, like a host name that a failover changes."""
    with Proxy(pair.master.port) as address:
        yield address


def _swap_roles(pair: Pair, address: Proxy) -> None:
    """Swap master and replica. The connections stay open: the clients are not notified."""
    with pair.master.client() as old, pair.replica.client() as new:
        new.replicaof("NO", "ONE")
        old.replicaof(LOOPBACK, pair.replica.port)
        # As after a restart: the server answers that it does not know the script.
        old.script_flush()
    pair.master, pair.replica = pair.replica, pair.master
    wait_until("the new replica is in sync", pair.is_in_step)
    address.lead_to(pair.master.port)


def _continues_after_swap(store: CheckpointStore, pair: Pair, address: Proxy) -> None:
    [before] = work(store, "agent", 1)
    wait_until("the replica is in sync", pair.is_in_step)
    _swap_roles(pair, address)

    with pytest.raises(StoreUnavailable):
        work(store, "agent", 1)
    [after] = work(store, "agent", 1)

    assert store.list("agent") == [after, before]


@pytest.mark.parametrize("durability", ["default", "replica"])
def test_a_store_disconnects_from_a_server_that_became_a_replica(
    pair: Pair, address: Proxy, durability: Durability
) -> None:
    with open_store(address.url, durability=durability) as store:
        _continues_after_swap(store, pair, address)


def test_a_client_with_a_bounded_pool_also_disconnects_from_the_replica(
    pair: Pair, address: Proxy
) -> None:
    pool = BlockingConnectionPool(host=LOOPBACK, port=address.port)
    with Redis(connection_pool=pool) as client:
        _continues_after_swap(RedisCheckpointStore(client), pair, address)
    pool.disconnect()


def test_nothing_is_read_from_a_demoted_master_that_sentinel_still_names(
    tmp_path: Path,
) -> None:
    with guarded(tmp_path) as servers, ThreadPoolExecutor() as threads:
        with open_store(servers.url) as store:
            [saved] = work(store, "agent", 1)
        with open_store(servers.url) as store, servers.master.client() as client:
            client.replicaof(LOOPBACK, servers.replica.port)
            client.config_resetstat()
            reading = threads.submit(store.load_latest, "agent")
            wait_until("it arrived twice", lambda: _times_asked(client) > 1)
            assert not reading.done()
            client.replicaof("NO", "ONE")
            assert reading.result(timeout=60) == saved


def _times_asked(client: Redis) -> int:
    """Return how often a server was asked for its role."""
    return client.info("commandstats").get("cmdstat_role", {}).get("calls", 0)
