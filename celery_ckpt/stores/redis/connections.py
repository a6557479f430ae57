"""Connections as the store wants them: whoever makes one is patient."""

from __future__ import annotations

from redis.connection import AbstractConnection, Connection, SSLConnection


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
