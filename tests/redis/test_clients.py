from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_ckpt import RedisCheckpointStore
from tests.support.redis_agents import call_every_method
from tests.support.servers.proxies import Proxy
from tests.support.servers.valkey import LOOPBACK, Valkey, wait_until


def test_a_client_that_was_passed_in_is_not_closed(wire: Proxy) -> None:
    with Redis(LOOPBACK, wire.port) as client:
        with RedisCheckpointStore(client) as store:
            call_every_method(store, "agent")
        client.ping()
        assert wire.connections == 1


@pytest.mark.parametrize(
    "options",
    [
        {"decode_responses": True},
        {"protocol": 3},
        {"protocol": 2},
        {"decode_responses": True, "protocol": 3},
        {"single_connection_client": True},
    ],
    ids=str,
)
def test_a_client_can_have_any_options(valkey: Valkey, redis_url: str, options: dict[str, Any]) -> None:
    with valkey.client(**options) as client:
        call_every_method(RedisCheckpointStore(client), "ágent ✓")


def test_a_client_created_by_the_store_is_closed_with_it(valkey: Valkey, redis_url: str) -> None:
    def connected() -> bool:
        return any(one["name"] == "ours" for one in watcher.client_list())

    with valkey.client() as watcher:
        with RedisCheckpointStore.from_url(f"{redis_url}?client_name=ours") as store:
            store.load_latest("agent")
            assert connected()
        wait_until("the connection is closed", lambda: not connected())
