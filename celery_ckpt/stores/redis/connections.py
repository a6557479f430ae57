"""Connections to a server that may be late: how long a call tries again, and how threads share them."""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, LifoQueue
from typing import Any

from redis import BlockingConnectionPool
from redis.backoff import ExponentialWithJitterBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import AuthenticationError, MaxConnectionsError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from celery_ckpt.stores.redis.errors import lacks_handshake

_MAX_CONNECTIONS = 100
#: How long, in seconds, a TLS handshake is tried that the server does not answer. Each try takes as
#: long as the socket's timeout.
_HANDSHAKE_PATIENCE = 8.0


class _Retry(Retry):
    """Gives up at once on a refused login, and soon on a TLS handshake without an answer."""

    def call_with_retry(self, do: Any, fail: Any, *args: Any, **options: Any) -> Any:
        """See redis-py."""
        end = time.monotonic() + _HANDSHAKE_PATIENCE

        # An error in the failure handler ends the loop in every redis-py. Version 6 has no other way.
        def fail_for_good_if_hopeless(error: Exception, *count: int) -> Any:
            is_late = lacks_handshake(error) and time.monotonic() > end
            if is_late or isinstance(error, AuthenticationError):
                raise error
            return fail(error, *count)

        return super().call_with_retry(do, fail_for_good_if_hopeless, *args, **options)


def retry(also: tuple[type[Exception], ...] = ()) -> Retry:
    """Return a policy that tries again for about ten seconds: longer than a restart or a failover.

    It must not contain a second loop. Health checks would add one.
    """
    errors = (RedisConnectionError, RedisTimeoutError, TimeoutError, *also)
    return _Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.5), 10, errors)


class _Patient(AbstractConnection):
    """Tries again until the server has also answered the first commands.

    Before redis-py 8 only connecting the socket is tried again. Then a server that is still loading its
    data, or a proxy without a server behind it, ends the call at once.
    """

    def connect(self) -> None:
        """See redis-py."""
        if self._sock is None:
            self.retry.call_with_retry(
                lambda: self.connect_check_health(check_health=True, retry_socket_connect=False),
                self.disconnect,
            )


class PatientConnection(_Patient, Connection):
    """A patient connection over TCP."""


class PatientTlsConnection(_Patient, SSLConnection):
    """A patient connection over TLS."""


# Not LifoQueue[Any]: gevent's class, which replaces it, has no parameter.
class _Connections(LifoQueue):  # type: ignore[type-arg]
    """The connections that are not in use.

    A thread that waits for one keeps waiting while others return theirs: the server answers, there are
    just many threads.
    """

    #: How often a thread got one. It grows while a thread waits: others return theirs, and yet
    #: others are faster to get them.
    taken = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while True:
            taken = self.taken
            try:
                connection = super().get(block, timeout)
            except Empty:
                if not block:
                    raise
            else:
                self.taken += 1
                return connection
            if self.taken == taken:
                raise MaxConnectionsError(
                    f"all {self.maxsize} connections of this process are in use, and none was returned "
                    f"for {timeout} s (a larger max_connections in the URL allows more)"
                )


class Pool(BlockingConnectionPool):
    """A pool in which a thread waits for a connection if all are in use.

    Args:
        max_connections: the most connections of the pool.
        timeout: how many seconds may pass without a connection being returned while threads wait; by
            default as long as a server may take to answer.
        options: options of the connections.
    """

    def __init__(
        self, max_connections: int = _MAX_CONNECTIONS, timeout: float | None = None, **options: Any
    ) -> None:
        if timeout is None:
            timeout = options.get("socket_timeout")
        options |= {"max_connections": max_connections, "timeout": timeout}
        super().__init__(queue_class=_Connections, **options)  # type: ignore[no-untyped-call]

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close all connections, or only those that are not in use, which redis-py 6 cannot do."""
        if inuse_connections:
            super().disconnect()
            return
        self._checkpid()
        idle = []
        with suppress(Empty):
            while True:
                idle.append(self.pool.get_nowait())
        for connection in reversed(idle):
            if connection is not None:
                connection.disconnect()
            self.pool.put_nowait(connection)


class SentinelPool(SentinelConnectionPool, Pool):
    """A pool of connections to the master that Sentinel names."""
