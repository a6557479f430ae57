"""A master and its replica, to fall behind and to fail."""

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

    def stand_still(self) -> None:
        """The replica confirms nothing any more."""
        self.replica.signal(signal.SIGSTOP)

    def fall_behind(self) -> None:
        """And it will never receive what is written from now on, unless it connects again."""
        self.stand_still()
        with self.master.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def catch_up(self) -> None:
        self.replica.signal(signal.SIGCONT)

    def lose_master(self) -> None:
        """The replica is all that is left."""
        self.master.kill()
        self.catch_up()
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")


@contextmanager
def replicated(directory: Path) -> Iterator[Pair]:
    """A master with a replica that nobody watches, soon in step."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with Valkey(directory / "master", *at_once) as master:
        copy_of = ("--replicaof", LOOPBACK, str(master.port))
        with Valkey(directory / "replica", *at_once, *copy_of) as replica:
            pair = Pair(master, replica)
            wait_until("the replica is in step", pair.is_in_step)
            yield pair
