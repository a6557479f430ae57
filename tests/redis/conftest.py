from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_ckpt import RedisCheckpointStore
from tests.support.servers.proxies import Proxy
from tests.support.servers.valkey import Valkey


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisCheckpointStore]:
    with RedisCheckpointStore.from_url(redis_url) as store:
        yield store


@pytest.fixture
def wire(valkey: Valkey, redis_url: str) -> Iterator[Proxy]:
    """A proxy to an empty server."""
    with Proxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture
def far_store(wire: Proxy) -> Iterator[RedisCheckpointStore]:
    """A store that reaches its server through ``wire``."""
    with RedisCheckpointStore.from_url(wire.url) as store:
        yield store
