"""Which messages a worker says are its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kombu import Connection

from celery_ckpt.runtime import parent


class _Request(SimpleNamespace):
    """Like Celery's; a plain namespace cannot be referred to weakly."""


def _received(channel: Any, tag: str, *, is_agent: bool = True) -> _Request:
    message = SimpleNamespace(channel=channel, delivery_tag=tag)
    request = _Request(
        id=tag, message=message, acknowledged=False, task=SimpleNamespace(is_agent=is_agent)
    )
    parent._on_received(request)
    return request


def test_messages_of_agents_are_a_workers_own_until_acknowledged_or_their_connection_is_lost() -> None:
    with Connection("memory://") as connection, Connection("memory://") as lost:
        kept, done = (_received(connection.default_channel, tag) for tag in ("kept", "done"))
        others = _received(connection.default_channel, "other", is_agent=False)
        gone = _received(lost.default_channel, "gone")
        assert set(parent.unacknowledged()) >= {"kept", "done", "gone"}

        done.acknowledged = True
        lost.collect()

        assert {"kept", "done", "gone", "other"} & set(parent.unacknowledged()) == {"kept"}
        assert [kept, others, gone]  # they live so long
