"""What the driver's errors mean: what to try again, what to raise instead, when to leave a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import BlockingConnectionPool, Redis, RedisCluster
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from celery_ckpt.errors import (
    CheckpointError,
    ConfigurationError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

#: What the driver can raise; a cluster's own exception is no RedisError.
DRIVER_ERRORS = (RedisError, RedisClusterException, OSError)
_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, RedisClusterException, OSError)
#: What a server answers that is a replica, and for which the driver has no class.
_OF_A_REPLICA = (
    "UNBLOCKED",  # it was made one while it waited for one
    "WAIT cannot be used with replica",
    "WAITAOF cannot be used with replica",
)
#: What a server answers while another one takes over.
_NOT_NOW = (
    AskError,  # of which MOVED is one
    ClusterError,  # it is down, or its nodes name each other as whose a slot is
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
)
#: The same in its own words, for which the driver has no class.
_NOT_NOW_IN_WORDS = (
    "MISCONF",  # the disk is full
    "NOREPLICAS",
    "WAITAOF cannot be used",
    *_OF_A_REPLICA,
)
#: What it answers when a user may run a script, but not a command in it: Redis 7 and Valkey, Redis 6.
_NOT_ALLOWED_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
#: What it answers, or its client says, if the URL does not fit the server.
_MISFITS = {
    "DB index is out of range": "Name another database in the URL",
    "Cluster mode is not enabled": "Write redis:// for a server that is no cluster",
    "unknown command": "Is it older than 6.2? Or no Sentinel, where the URL says redis+sentinel://",
}
#: Python's words for TLS that nobody answers (a server without it waits for more), and how long to
#: try again then, in seconds: each time takes as long as the socket's timeout.
_NO_HANDSHAKE, _HANDSHAKE_PATIENCE = "handshake operation timed out", 8.0


class _Retry(Retry):
    """A refused login is not tried again: it stays refused. TLS that nobody answers, not for long."""

    def call_with_retry(self, do: Any, fail: Any, *args: Any, **options: Any) -> Any:
        """See redis-py."""
        end = time.monotonic() + _HANDSHAKE_PATIENCE

        # An error in the failure handler ends the loop in every redis-py; version 6 has no other way.
        def fail_for_good_if_hopeless(error: Exception, *count: int) -> Any:
            is_late = _is_without_handshake(error) and time.monotonic() > end
            if is_late or isinstance(error, AuthenticationError):
                raise error
            return fail(error, *count)

        return super().call_with_retry(do, fail_for_good_if_hopeless, *args, **options)


def _is_without_handshake(error: BaseException) -> bool:
    """The driver says only that it could not connect in time, and keeps why as the context."""
    return _NO_HANDSHAKE in f"{error} {error.__context__}"


def retry(also: tuple[type[Exception], ...] = ()) -> Retry:
    """About ten seconds of trying again, which covers a restart and a failover.

    There must be no second loop inside it: health checks would bring one along.
    """
    errors = (RedisConnectionError, RedisTimeoutError, TimeoutError, *also)
    return _Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.5), 10, errors)


def leave_replica(client: Redis | RedisCluster, error: Exception) -> None:
    """Close the idle connections to a server that answers as a replica: the next one may lead to the
    master. A cluster's client is told by its servers where to go.
    """
    is_replica = isinstance(error, ReadOnlyError | MasterDownError)
    if isinstance(client, RedisCluster) or not (is_replica or str(error).startswith(_OF_A_REPLICA)):
        return
    pool = client.connection_pool
    if isinstance(pool, BlockingConnectionPool):
        pool.disconnect()  # before redis-py 7 it knows only all of them
    else:
        pool.disconnect(inuse_connections=False)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error, where) from error


def translate(error: Exception, where: str, key: bytes | str = "") -> CheckpointError:
    """The error of ours that says what one of the driver's means; ``key``: what was asked about."""
    # What follows in the answer of Sentinel's client are all its clients with all their options.
    reason = str(error).partition(" : <redis")[0].rstrip(".?") or type(error).__name__
    if _is_without_handshake(error):
        reason += ", no TLS was spoken (if the server has none, write redis:// for rediss://)"
    in_script = any(text in reason for text in _NOT_ALLOWED_IN_SCRIPT)
    if isinstance(error, NoPermissionError) or in_script:
        return ConfigurationError(
            reason=f"The Redis user at {where} lacks a permission: {reason}. Give it the rights of its "
            "role on the keys of ckpt_key_prefix; the page on restricting Redis users lists them."
        )
    if isinstance(error, AuthenticationError):
        return ConfigurationError(reason=f"The Redis server at {where} refused the login: {reason}.")
    for text, remedy in _MISFITS.items():
        if text in reason:
            told = f"The Redis server at {where} does not fit its URL: {reason}. {remedy}."
            return ConfigurationError(reason=told)
    if isinstance(error, OutOfMemoryError):
        return StoreFull(where=where, reason=reason)
    if isinstance(error, (*_UNREACHABLE, *_NOT_NOW)) or reason.startswith(_NOT_NOW_IN_WORDS):
        return StoreUnavailable(where=where, reason=reason)
    name = key if isinstance(key, str) else key.decode(errors="replace")
    about = f" about {name}" if name else ""
    return StoreError(reason=f"The Redis store at {where} answered{about}: {reason}.")
