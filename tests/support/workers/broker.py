"""What is left in a Redis broker, and what can go wrong between it and its workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psutil

from tests.support.servers.valkey import Valkey
from tests.support.wait import until

#: The databases of the one server that most tests use for everything.
BROKER_DB, BACKEND_DB, STORE_DB = 0, 1, 2


class Broker:
    """The broker's database on a server that the tests may cut off and restart."""

    def __init__(self, server: Valkey, db: int = BROKER_DB) -> None:
        self.server, self.db = server, db

    def url(self, db: int | None = None) -> str:
        """The URL of the broker's database, or of another one of the server."""
        return self.server.url.removesuffix("/0") + f"/{self.db if db is None else db}"

    # What is there

    def queue_length(self, queue: str = "celery") -> int:
        """The messages that wait in a queue."""
        with self.server.client(db=self.db) as client:
            return client.llen(queue)

    def unacked(self) -> list[str]:
        """The tags of the messages that some worker has and has not acknowledged."""
        with self.server.client(db=self.db, decode_responses=True) as client:
            return client.hkeys("unacked")

    def unacked_index(self) -> dict[str, float]:
        """The same tags, with the times of their deliveries."""
        with self.server.client(db=self.db, decode_responses=True) as client:
            return dict(client.zrange("unacked_index", 0, -1, withscores=True))

    def unacked_messages(self) -> list[str]:
        """The same messages, whole."""
        with self.server.client(db=self.db, decode_responses=True) as client:
            return client.hvals("unacked")

    def left(self) -> dict[str, Any]:
        """All messages that are not done with; empty if there are none."""
        with self.server.client(db=self.db, decode_responses=True) as client:
            # Queues are the only lists; one that is empty does not exist.
            queues = {key: client.llen(key) for key in client.scan_iter(_type="list")}
        left = {**queues, "unacked": self.unacked(), "unacked_index": self.unacked_index()}
        return {key: value for key, value in left.items() if value}

    def assert_clean(self, deadline: float) -> None:
        """Wait until no message is left, or fail with those that are."""
        assert_nothing_left(self.left, deadline)

    # What happens to it

    def cut_connections(self, db: int | None = BROKER_DB) -> int:
        """Close all connections to a database (None: to any) but those of this process.

        Returns how many. The server goes on: this is a network that drops connections, not an outage.
        """
        with self.server.client(decode_responses=True) as client:
            own = _own_addresses()
            others = [
                one
                for one in client.client_list()
                if one["addr"] not in own and db in (None, int(one["db"]))
            ]
            return sum(client.client_kill_filter(_id=one["id"]) for one in others)

    def restart(self) -> None:
        """Kill -9 of the server, and a new one on its port with all that it had acknowledged."""
        self.server.restart()


def assert_nothing_left(left: Callable[[], dict[str, Any]], deadline: float) -> None:
    """Wait until nothing is left, or fail with what is."""
    seen: dict[str, Any] = {}

    def is_clean() -> bool:
        seen.clear()
        seen.update(left())
        return not seen

    try:
        until(is_clean, deadline, "the broker is clean")
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen}") from None


def _own_addresses() -> set[str]:
    connections = psutil.Process(os.getpid()).net_connections("tcp")
    return {f"{one.laddr.ip}:{one.laddr.port}" for one in connections}
