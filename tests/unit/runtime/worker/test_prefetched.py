"""Which messages a worker claims as its own, and which messages of other workers it puts back."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.runtime.worker import parent
from celery_ckpt.runtime.worker.prefetched import PrefetchedMessages
from tests.support.tasks.scenarios import MODULE
from tests.support.workers.broker import RedisBroker


class _Request(SimpleNamespace):
    """Like Celery's request; a plain namespace does not support weak references."""


def _received(channel: Any, tag: str, *, is_agent: bool = True) -> _Request:
    message = SimpleNamespace(channel=channel, delivery_tag=tag)
    request = _Request(
        id=tag, message=message, acknowledged=False, task=SimpleNamespace(is_agent=is_agent)
    )
    parent._on_received(request)
    return request


def test_a_worker_has_its_messages_until_they_are_acknowledged_or_their_connection_is_lost() -> None:
    with Connection("memory://") as connection, Connection("memory://") as lost:
        kept, done = (_received(connection.default_channel, tag) for tag in ("kept", "done"))
        others = _received(connection.default_channel, "other", is_agent=False)
        lost_message = _received(lost.default_channel, "lost")
        assert set(parent.unacknowledged()) >= {"kept", "done", "lost"}

        done.acknowledged = True
        lost.collect()

        assert {"kept", "done", "lost", "other"} & set(parent.unacknowledged()) == {"kept"}
        assert [kept, others, lost_message]  # they must live until here


@pytest.mark.configured(include=(MODULE,))
def test_a_forged_message_does_not_keep_the_messages_of_agents_from_being_put_back(
    celery_app: Celery, broker: RedisBroker
) -> None:
    ttl, message = 2.0, {"headers": {"ckpt_recorded": True}, "properties": {"delivery_info": {}}}
    found = {f"forged {n}": text for n, text in enumerate(["no JSON", "[]", "{}", "[5]"])}
    found["task"] = json.dumps([{"headers": {"task": ["a list"]}}, "", "celery"])
    found["agent's"] = json.dumps([message, "", "celery"])
    with broker.server.client(db=broker.db) as client:
        client.hset("unacked", mapping=found)
        client.zadd("unacked_index", dict.fromkeys(found, time.time() - ttl - 2))

    with celery_app.connection_for_write() as connection:
        fetched = PrefetchedMessages(celery_app, ttl)
        fetched.check(Unacked(connection))
        fetched.check(Unacked(connection))

    assert "agent's" not in broker.unacked()
    assert broker.queue_length() == 1
