"""The brokers of the tests: which messages are left in one, and how its connections are cut."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from itertools import count
from typing import Any

import psutil

from tests.support.servers.rabbitmq import RabbitMq
from tests.support.servers.valkey import Valkey
from tests.support.wait import until

#: The databases of the one server that most tests use for everything.
BROKER_DB, BACKEND_DB, STORE_DB = 0, 1, 2


class Broker(ABC):
    """A broker of any kind. A scenario that runs on each of them uses only this."""

    @abstractmethod
    def url(self) -> str:
        """Return the URL for ``broker_url``."""

    @abstractmethod
    def left(self) -> dict[str, Any]:
        """Return all messages that are not acknowledged; empty if there are none."""

    @abstractmethod
    def cut_connections(self) -> int:
        """Close the connections of the workers, and return how many there were.

        The server keeps running: this is a network that drops connections, not an outage.
        """

    def assert_clean(self, deadline: float) -> None:
        """Wait until no message is left. Fail with the messages that are."""
        seen: dict[str, Any] = {}

        def is_clean() -> bool:
            seen.clear()
            seen.update(self.left())
            return not seen

        try:
            until(is_clean, deadline, "the broker is clean")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}") from None


class RedisBroker(Broker):
    """The broker's database on a server that the tests may cut off and restart."""

    def __init__(self, server: Valkey, db: int = BROKER_DB) -> None:
        self.server, self.db = server, db

    def url(self) -> str:
        return self.server.url_of(self.db)

    def queue_length(self, queue: str = "celery") -> int:
        """Return the number of messages that wait in a queue."""
        with self.server.client(db=self.db) as client:
            return client.llen(queue)

    def unacked(self) -> list[str]:
        """Return the tags of the messages that a worker has received and not acknowledged."""
        with self.server.client(db=self.db, decode_responses=True) as client:
            return client.hkeys("unacked")

    def unacked_index(self) -> dict[str, float]:
        """Return the tags of the unacknowledged messages with the times of their deliveries."""
        with self.server.client(db=self.db, decode_responses=True) as client:
            return dict(client.zrange("unacked_index", 0, -1, withscores=True))

    def unacked_messages(self) -> list[str]:
        """Return the unacknowledged messages themselves."""
        with self.server.client(db=self.db, decode_responses=True) as client:
            return client.hvals("unacked")

    def left(self) -> dict[str, Any]:
        with self.server.client(db=self.db, decode_responses=True) as client:
            # Queues are the only lists. An empty list does not exist.
            queues = {key: client.llen(key) for key in client.scan_iter(_type="list")}
        left = {**queues, "unacked": self.unacked(), "unacked_index": self.unacked_index()}
        return {key: value for key, value in left.items() if value}

    def cut_connections(self, db: int | None = BROKER_DB) -> int:
        """Close all connections to a database (None: to any), except those of this process."""
        with self.server.client(decode_responses=True) as client:
            own = _own_addresses()
            others = [
                one
                for one in client.client_list()
                if one["addr"] not in own and db in (None, int(one["db"]))
            ]
            return sum(client.client_kill_filter(_id=one["id"]) for one in others)

    def restart(self) -> None:
        """Kill the server with SIGKILL and start it again on its port, with every write it kept."""
        self.server.restart()


def _own_addresses() -> set[str]:
    connections = psutil.Process(os.getpid()).net_connections("tcp")
    return {f"{one.laddr.ip}:{one.laddr.port}" for one in connections}


class RabbitBroker(Broker):
    """A new virtual host of a RabbitMQ node, without queues."""

    _numbers = count(1)

    def __init__(self, server: RabbitMq) -> None:
        self.server, self._vhost = server, f"test{next(self._numbers)}"
        name, all_ = f'<<"{self._vhost}">>', '<<".*">>'
        server.evaluate(f'rabbit_vhost:add({name}, <<"tests">>)')
        rights = f'<<"guest">>, {name}, {all_}, {all_}, {all_}, <<"tests">>'
        server.evaluate(f"rabbit_auth_backend_internal:set_permissions({rights})")

    def url(self) -> str:
        return self.server.url(self._vhost)

    def left(self) -> dict[str, tuple[int, int]]:
        """Return the queues that are not empty: ``{name: (ready, unacknowledged)}``."""
        kinds = "[name, messages_ready, messages_unacknowledged]"
        answer = self.server.evaluate(
            f'lists:flatten([io_lib:format("~s ~w ~w;", [element(4, Name), Ready, Unacked]) || '
            f"[{{_, Name}}, {{_, Ready}}, {{_, Unacked}}] <- "
            f'rabbit_amqqueue:info_all(<<"{self._vhost}">>, {kinds})])'
        )
        rows = re.findall(r'([^\s";]+) (\d+) (\d+);', answer)
        return {
            name: (int(ready), int(unacked)) for name, ready, unacked in rows if ready + unacked != "00"
        }

    def cut_connections(self) -> int:
        """Close all connections to the node, also those of this process."""
        close = 'rabbit_networking:close_connections(All, "cut")'
        return int(self.server.evaluate(f"All = rabbit_networking:connections(), {close}, length(All)"))
