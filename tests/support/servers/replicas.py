"""A master and its replica, which can fall behind or lose the master."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.valkey import LOOPBACK, Valkey, wait_until


class Pair:
    """A master and its replica."""

    def __init__(self, master: Valkey, replica: Valkey) -> None:
        self.master, self.replica = master, replica

    def is_in_step(self) -> bool:
        with self.master.client() as master, self.replica.client() as replica:
            link = replica.info("replication")
            written = master.info("replication")["master_repl_offset"]
        return link["master_link_status"] == "up" and link["slave_repl_offset"] == written

    def freeze_replica(self) -> None:
        """Stop the replica with SIGSTOP: it confirms no more writes."""
        self.replica.signal(signal.SIGSTOP)

    def fall_behind(self) -> None:
        """Freeze the replica and disconnect it: it misses every write until it has reconnected."""
        self.freeze_replica()
        with self.master.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def catch_up(self) -> None:
        self.replica.signal(signal.SIGCONT)

    def lose_master(self) -> None:
        """Kill the master and promote the replica."""
        self.master.kill()
        self.catch_up()
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")


@contextmanager
def replicated(directory: Path) -> Iterator[Pair]:
    """Start a master and a replica without Sentinel, and wait until the replica is in sync."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with Valkey(directory / "master", *at_once) as master:
        copy_of = ("--replicaof", LOOPBACK, str(master.port))
        with Valkey(directory / "replica", *at_once, *copy_of) as replica:
            pair = Pair(master, replica)
            wait_until("the replica is in sync", pair.is_in_step)
            yield pair
