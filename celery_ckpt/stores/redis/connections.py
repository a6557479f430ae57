"""Connections as the store wants them: patient with a server that is late, and shared by waiting."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, LifoQueue
from typing import Any

from redis import BlockingConnectionPool
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import MaxConnectionsError
from redis.sentinel import SentinelConnectionPool

_AT_MOST = 100


class _Patient(AbstractConnection):
    """Tries again until the server has also answered the first commands.

    Before redis-py 8 only the socket is tried again. Then a server that is still loading its data, or a
    proxy without a server behind it, ends the call at once.
    """

    def connect(self) -> None:
        """See redis-py."""
        self.retry.call_with_retry(
            lambda: self.connect_check_health(check_health=True, retry_socket_connect=False),
            self.disconnect,
        )


class PatientConnection(_Patient, Connection):
    """Over TCP."""


class PatientTlsConnection(_Patient, SSLConnection):
    """Over TLS."""


# Not LifoQueue[Any]: gevent's, which takes its place, has no parameter.
class _Connections(LifoQueue):  # type: ignore[type-arg]
    """The connections that nobody uses.

    Whoever waits for one goes on waiting while others return theirs: the server answers, there are just
    many threads.
    """

    returned = 0

    def put_nowait(self, item: Any) -> None:
        self.returned += 1
        super().put_nowait(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while True:
            returned = self.returned
            try:
                return super().get(block, timeout)
            except Empty:
                if not block:
                    raise
            if self.returned == returned:
                raise MaxConnectionsError(
                    f"all {self.maxsize} connections of this process are in use, and none was returned "
                    f"for {timeout} s (a larger max_connections in the URL allows more)"
                )


class Pool(BlockingConnectionPool):
    """A thread that finds all connections in use waits for one.

    Args:
        max_connections: how many there are at most.
        timeout: for how many seconds no connection may be returned to those that wait; as long as a
            server may take to answer.
        options: of the connections.
    """

    def __init__(
        self, max_connections: int = _AT_MOST, timeout: float | None = None, **options: Any
    ) -> None:
        if timeout is None:
            timeout = options.get("socket_timeout")
        options |= {"max_connections": max_connections, "timeout": timeout}
        super().__init__(queue_class=_Connections, **options)  # type: ignore[no-untyped-call]

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close all connections, or those that nobody uses, which redis-py 6 cannot do."""
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
    """The same for the master that Sentinel names."""
