"""What a server's configuration says about losing checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis import Redis
from redis.exceptions import NoPermissionError

from celery_ckpt.errors import ConfigurationError, StoreError, StoreUnavailable
from celery_ckpt.store import Durability
from celery_ckpt.stores.redis.errors import translated
from celery_ckpt.stores.redis.server import Server

_SECTIONS = ("memory", "persistence", "replication", "server")


def risks_of(server: Server, durability: Durability = "default") -> list[str]:
    """Why the server, or a node of a cluster, may lose what was saved.

    Raises:
        ConfigurationError: it cannot be as durable as it is to be.
        StoreUnavailable: it does not answer.
    """
    try:
        with translated(server.where):
            return list(_risks_of_all(server, durability))
    except StoreUnavailable:
        raise
    except StoreError as error:
        return [f"its configuration cannot be read: {error}"]


def _risks_of_all(server: Server, durability: Durability) -> Iterator[str]:
    if isinstance(server.client, Redis):
        yield from _risks(_info(server.client), durability, server.where)
        return
    for node in server.client.get_primaries():
        info = _info(server.client.get_redis_connection(node))
        yield from (f"{node.name}: {risk}" for risk in _risks(info, durability, node.name))


def _info(client: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        for section in _SECTIONS:  # Redis 6 takes one at a time
            found |= client.info(section)
    except NoPermissionError as error:  # all else may be allowed
        raise StoreError(reason=str(error)) from error
    with suppress(NoPermissionError):
        found |= client.config_get("appendfsync")
    return found


def _risks(info: dict[str, Any], durability: Durability, where: str) -> Iterator[str]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}: when memory is short, checkpoints are dropped"
    if durability == "fsync":
        _refuse_unsynced(info, where)
    elif not info.get("aof_enabled"):
        yield "the append-only file is off: a restart loses what was saved since the last snapshot"
    if durability == "replica" and not info.get("connected_slaves"):
        yield "durability is 'replica' and there is none: every save waits until one is connected"


def _refuse_unsynced(info: dict[str, Any], where: str) -> None:
    version = str(info.get("redis_version", "0"))  # Valkey says here which Redis it is like
    if tuple(int(part) for part in version.split(".")[:2]) < (7, 2):
        why = f"Redis from 7.2 on, or Valkey; the server at {where} is {version}"
    elif not info.get("aof_enabled"):
        why = f"the append-only file; on the server at {where} it is off (appendonly no)"
    elif info.get("appendfsync") == "no":
        why = f"a server that syncs; the one at {where} never does (appendfsync no)"
    else:
        return
    raise ConfigurationError(reason=f"Durability 'fsync' needs {why}.")
