"""A server that is no master any more: nobody stays with it."""

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
    """Leads to whoever is the master, as a name does that is changed in a failover."""
    with Proxy(pair.master.port) as address:
        yield address


def _change_places(pair: Pair, address: Proxy) -> None:
    """The connections stay: nobody tells the clients."""
    with pair.master.client() as old, pair.replica.client() as new:
        new.replicaof("NO", "ONE")
        old.replicaof(LOOPBACK, pair.replica.port)
        # As after a restart: what it says of a script is that it does not know it.
        old.script_flush()
    pair.master, pair.replica = pair.replica, pair.master
    wait_until("the new replica is in step", pair.is_in_step)
    address.lead_to(pair.master.port)


def _goes_on(store: CheckpointStore, pair: Pair, address: Proxy) -> None:
    [before] = work(store, "agent", 1)
    wait_until("the replica is in step", pair.is_in_step)
    _change_places(pair, address)

    with pytest.raises(StoreUnavailable):
        work(store, "agent", 1)
    [after] = work(store, "agent", 1)

    assert store.list("agent") == [after, before]


@pytest.mark.parametrize("durability", ["default", "replica"])
def test_a_store_disconnects_from_a_server_that_became_a_replica(
    pair: Pair, address: Proxy, durability: Durability
) -> None:
    with open_store(address.url, durability=durability) as store:
        _goes_on(store, pair, address)


def test_a_client_with_a_bounded_pool_also_disconnects_from_the_replica(
    pair: Pair, address: Proxy
) -> None:
    pool = BlockingConnectionPool(host=LOOPBACK, port=address.port)
    with Redis(connection_pool=pool) as client:
        _goes_on(RedisCheckpointStore(client), pair, address)
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
            wait_until("it came twice", lambda: _times_asked(client) > 1)
            assert not reading.done()
            client.replicaof("NO", "ONE")
            assert reading.result(timeout=60) == saved


def _times_asked(client: Redis) -> int:
    """How often a server was asked what it is."""
    return client.info("commandstats").get("cmdstat_role", {}).get("calls", 0)
