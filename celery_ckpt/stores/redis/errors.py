"""What the driver's errors mean: which error the store raises instead, and when to leave a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import BlockingConnectionPool, Redis, RedisCluster
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

from celery_ckpt.errors import (
    CheckpointError,
    ConfigurationError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

#: What the driver can raise; a cluster's own exception is not a RedisError.
DRIVER_ERRORS = (RedisError, RedisClusterException, OSError)
_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, RedisClusterException, OSError)
#: What a replica answers, if the driver has no class for it.
_OF_A_REPLICA = (
    "UNBLOCKED",  # it became a replica while it waited for one
    "WAIT cannot be used with replica",
    "WAITAOF cannot be used with replica",
)
#: What a server answers while another one takes over.
_NOT_NOW = (
    AskError,  # the base class of MOVED
    ClusterError,  # the cluster is down, or two nodes name each other as the owner of a slot
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
)
#: The same, if the driver has no class for it.
_NOT_NOW_IN_WORDS = (
    "MISCONF",  # the disk is full
    "NOREPLICAS",
    "WAITAOF cannot be used",
    *_OF_A_REPLICA,
)
#: What Redis 7 and Valkey, and Redis 6 answer if a user may run a script, but not a command in it.
_NOT_ALLOWED_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
#: What the server or its client reports if the URL does not fit the server, and what to do.
_MISFITS = {
    "DB index is out of range": "Name another database in the URL",
    "Cluster mode is not enabled": "Write redis:// for a server that is not a cluster",
    "unknown command": "It needs Redis 6.2 or newer, and a Sentinel for redis+sentinel://",
}


#: Python's words for a TLS handshake without an answer: a server without TLS waits for more.
_NO_HANDSHAKE = "handshake operation timed out"


def lacks_handshake(error: BaseException) -> bool:
    """True if the server did not answer a TLS handshake.

    The driver reports only that it could not connect in time. The reason is the error's context.
    """
    return _NO_HANDSHAKE in f"{error} {error.__context__}"


def leave_replica(client: Redis | RedisCluster, error: Exception) -> None:
    """Close the idle connections to a server that answers as a replica: a new one may reach the master.

    A cluster's client follows the redirections of its servers instead.
    """
    is_replica = isinstance(error, ReadOnlyError | MasterDownError)
    if isinstance(client, RedisCluster) or not (is_replica or str(error).startswith(_OF_A_REPLICA)):
        return
    pool = client.connection_pool
    if isinstance(pool, BlockingConnectionPool):
        pool.disconnect()  # before redis-py 7 it can only close all of them
    else:
        pool.disconnect(inuse_connections=False)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn the driver's errors into errors of the store."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error, where) from error


def translate(error: Exception, where: str, key: bytes | str = "") -> CheckpointError:
    """Return the error of the store for one of the driver's; ``key`` is the key of the command."""
    # The rest of the error of Sentinel's client lists all its clients and all their options.
    reason = str(error).partition(" : <redis")[0].rstrip(".?") or type(error).__name__
    if lacks_handshake(error):
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
            misfit = f"The Redis server at {where} does not fit its URL: {reason}. {remedy}."
            return ConfigurationError(reason=misfit)
    if isinstance(error, OutOfMemoryError):
        return StoreFull(where=where, reason=reason)
    if isinstance(error, (*_UNREACHABLE, *_NOT_NOW)) or reason.startswith(_NOT_NOW_IN_WORDS):
        return StoreUnavailable(where=where, reason=reason)
    name = key if isinstance(key, str) else key.decode(errors="replace")
    about = f" about {name}" if name else ""
    return StoreError(reason=f"The Redis store at {where} answered{about}: {reason}.")
