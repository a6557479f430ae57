"""A server that can lose checkpoints is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_ckpt import RedisCheckpointStore, open_store
from tests.support.servers.valkey import Valkey

SAFE = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (SAFE, []),
        (("--appendonly", "no", "--maxmemory-policy", "noeviction"), ["append-only file is off"]),
        ((*SAFE[:3], "allkeys-lru"), ["maxmemory-policy is allkeys-lru"]),
    ],
    ids=["safe", "no append-only file", "eviction"],
)
def test_a_server_that_can_lose_checkpoints_is_reported_as_a_risk(
    tmp_path: Path, options: tuple[str, ...], expected: list[str]
) -> None:
    with Valkey(tmp_path, *options) as server, server.client() as client:
        risks = RedisCheckpointStore(client).risks()

    assert len(risks) == len(expected)
    assert all(part in risk for part, risk in zip(expected, risks, strict=True))


def test_the_memory_store_reports_that_it_is_limited_to_one_process() -> None:
    assert "memory of one process" in open_store("memory://").risks()[0]
