"""Writes that are confirmed: by the server's disk (``WAITAOF``), or by a replica (``WAIT``).

A server waits for what the same connection wrote, so the write and the wait are sent in one pipeline.
It waits for nothing if the connection wrote nothing. A write that is repeated, because it was not
confirmed in time, changes nothing, and the server would confirm it although no replica has it. So
``wait_write.lua`` always writes something after it: a replica that has that has everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import AskError, ClusterDownError, NoScriptError, TryAgainError

from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.store import Durability
from celery_ckpt.stores.redis.addresses import AnyClient
from celery_ckpt.stores.redis.connections import retry
from celery_ckpt.stores.redis.errors import DRIVER_ERRORS
from celery_ckpt.stores.redis.server import Call, Server

#: An agent's work, and its index entries. If it is not confirmed, the store is unavailable.
MUST_BE_KEPT = frozenset(
    {
        "run_add",
        "run_cancel",
        "agent_delete",
        "step_record",
        "agent_rewrite",
        "checkpoint_save",
        "agent_set_policy",
    }
    | {"run_update"}
    | {"HSETNX", "ZADD"}
)
#: Awaited, but used without confirmation after a while: repeating it would count as another attempt.
SHOULD_BE_KEPT = frozenset({"run_start"})
#: If a failover undoes these, that costs some time, or some memory.
MAY_BE_LOST = frozenset(
    {
        "lease_acquire",
        "step_drop",
        "schedule_claim",
        "run_delete",
        "schedule_move",
        "lease_release",
        "checkpoint_remove",
        "lease_renew",
        "lease_renew_many",
        "run_pass",
        "run_settle",
        "schedule_remove",
        "schedule_add",
        "agent_list",
        "agent_note",
        "watchdog_count",
        "event_log_note",
        "event_log_follow",
        "event_log_stream",
    }
)

#: The share of the socket's timeout that a confirmation may take.
_SHARE = 0.8
_DEFAULT_SOCKET_TIMEOUT = 5.0
_REDIRECTED = (AskError, ClusterDownError, TryAgainError)  # MOVED is an AskError


def server_for(client: AnyClient, where: str, durability: Durability) -> Server:
    """Return the server for a client: one that confirms writes, if the durability needs it."""
    if durability == "default":
        return Server(client, where)
    return AwaitingServer(client, where, durability)


class AwaitingServer(Server):
    """A server whose writes return when they are confirmed."""

    def __init__(self, client: AnyClient, where: str, durability: Durability) -> None:
        super().__init__(client, where)
        self.joins = False
        self._seconds = _SHARE * (_socket_timeout(client) or _DEFAULT_SOCKET_TIMEOUT)
        is_disk = durability == "fsync"
        self._by = "the server's disk" if is_disk else "a replica"
        command = ("WAITAOF", 1, 0) if is_disk else ("WAIT", 1)
        self._wait = Call.command(*command, round(1000 * self._seconds))

    def run(self, script: str, keys: Sequence[bytes], *args: Any) -> Any:
        """See ``Server``."""
        if not _is_awaited(script):
            return super().run(script, keys, *args)
        return self.together(Call.script(script, keys, *args))[0]

    def command(self, *args: Any) -> Any:
        """See ``Server``."""
        if not _is_awaited(args[0]):
            return super().command(*args)
        return self.together(Call.command(*args))[0]

    def together(self, *calls: Call) -> list[Any]:
        """See ``Server``. If one call is awaited, all are."""
        if not any(_is_awaited(call.name) for call in calls):
            return super().together(*calls)
        try:
            replies, are_kept = self._awaited(calls)
        except DRIVER_ERRORS as error:
            raise self._translated(error, calls[-1].key) from error
        if not are_kept and any(_parts(call.name) & MUST_BE_KEPT for call in calls):
            reason = f"a write was not confirmed by {self._by} within {self._seconds:g} s"
            raise StoreUnavailable(where=self.where, reason=reason)
        return replies

    def _awaited(self, calls: Sequence[Call]) -> tuple[list[Any], bool]:
        if isinstance(self.client, Redis):
            return self._on_one_connection(self.client, calls)
        each = [self._on_its_node(call) for call in calls]
        return [replies[0] for replies, _ in each], all(is_kept for _, is_kept in each)

    def _on_its_node(self, call: Call) -> tuple[list[Any], bool]:
        """Send a call to a cluster, whose own client would follow a redirection without the wait."""
        cluster: Any = self.client

        def attempt() -> tuple[list[Any], bool]:
            node = cluster.get_redis_connection(cluster.get_node_from_key(call.key))
            return self._on_one_connection(node, [call])

        try_again = retry(also=_REDIRECTED)
        result: tuple[list[Any], bool] = try_again.call_with_retry(
            attempt, lambda _: cluster.nodes_manager.initialize()
        )
        return result

    def _on_one_connection(self, client: Redis, calls: Sequence[Call]) -> tuple[list[Any], bool]:
        sent = [*calls, Call.script("wait_write", [calls[-1].key]), self._wait]
        replies = _piped(client, [call.args for call in sent])
        if any(map(_is_unknown, replies)):
            # Send all of it again: what the server did may have been lost, with that server.
            first, again = replies, _piped(client, [call.with_source for call in sent])
            known = zip(first[: len(calls)], again, strict=False)
            replies = [new if _is_unknown(old) else old for old, new in known] + again[len(calls) :]
        *answers, _, kept = replies
        return answers, (kept if isinstance(kept, int) else kept[0]) > 0


def _is_awaited(name: str) -> bool:
    return bool(_parts(name) & (MUST_BE_KEPT | SHOULD_BE_KEPT))


def _parts(name: str) -> set[str]:
    """Return the names of the scripts and commands in a joined script."""
    return set(name.split("+"))


def _piped(client: Redis, commands: list[tuple[Any, ...]]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for args in commands:
        pipeline.execute_command(*args, NEVER_DECODE=True)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception) and not _is_unknown(reply):
            raise reply
    return replies


def _is_unknown(reply: Any) -> bool:
    """True if the server does not know the script."""
    return isinstance(reply, NoScriptError)


def _socket_timeout(client: Any) -> float | None:
    holder = client.connection_pool if isinstance(client, Redis) else client.nodes_manager
    seconds: float | None = holder.connection_kwargs.get("socket_timeout")
    return seconds
