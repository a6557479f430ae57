"""What the store of a fleet can run on: its servers, the network in front of them if any, and
its URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.network import Network
from tests.support.servers.valkey import APPEND_ONLY, LOOPBACK, Valkey, cluster, guarded

#: Everything acknowledged survives a SIGKILL of the server.
KEPT = ("--appendonly", "yes", "--appendfsync", "no")
Opened = tuple[Any, Network | None, str]


@contextmanager
def _alone(directory: Path) -> Iterator[Opened]:
    with Valkey(directory, *KEPT) as server, Network(server.port) as network:
        yield server, network, network.url


@contextmanager
def _sentinel(directory: Path) -> Iterator[Opened]:
    """Start a replicated pair. A machine that is merely busy must not be declared dead."""
    with guarded(directory, down_after=2.0, options=KEPT) as servers:
        yield servers, None, servers.url


@contextmanager
def _cluster(directory: Path) -> Iterator[Opened]:
    with cluster(directory, options=APPEND_ONLY, down_after=2.0) as nodes:
        hosts = ",".join(f"{LOOPBACK}:{node.port}" for node in nodes)
        yield nodes, None, f"redis+cluster://{hosts}"


@contextmanager
def _file(directory: Path) -> Iterator[Opened]:
    yield directory, None, f"file:///{directory}"


@contextmanager
def _sqlite(directory: Path) -> Iterator[Opened]:
    yield directory, None, f"sqlite:///{directory}/store.db"


STORES = {
    "alone": _alone,
    "sentinel": _sentinel,
    "cluster": _cluster,
    "file": _file,
    "sqlite": _sqlite,
}
