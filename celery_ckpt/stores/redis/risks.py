"""What a server's configuration says about losing checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis import Redis

from celery_ckpt.errors import StoreError
from celery_ckpt.stores.redis.server import Server


def risks_of(server: Server) -> list[str]:
    """Why the server may lose what was saved."""
    if not isinstance(server.client, Redis):
        return []  # the nodes of a cluster may each be set up differently
    try:
        return list(_risks(_info(server, "memory") | _info(server, "persistence")))
    except StoreError as error:
        return [f"its configuration cannot be read: {error}"]


def _info(server: Server, section: str) -> dict[str, Any]:
    # The driver takes it apart by itself.
    info: dict[str, Any] = server.command("INFO", section)
    return info


def _risks(info: dict[str, Any]) -> Iterator[str]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}: when memory is short, checkpoints are dropped"
    if not info.get("aof_enabled"):
        yield "the append-only file is off: a restart loses what was saved since the last snapshot"
