"""Messages: what it takes to send a run again, and what Redis keeps of those being worked on.

On Redis a delivered message stays in ``unacked`` until it is acknowledged, and comes back when its
visibility timeout is over. A long attempt pushes that moment along (``touch``); the message of a dead
one is put back at once (``restore``). Other brokers do the like by themselves.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu.connection import Connection
from kombu.serialization import dumps, loads, prepare_accept_content
from kombu.utils import json

from celery_ckpt.errors import NotJson, StoreError
from celery_ckpt.json_values import plain

#: What it raises to read a message that is damaged, or that somebody has forged.
DAMAGED = (AttributeError, LookupError, TypeError, ValueError)
#: What a run that has begun must not be bound to when it is sent again.
_ONLY_BEFORE_THE_START = ("eta", "expires")


def envelope(
    *,
    body: Any,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    exchange: str,
    routing_key: str,
    serializer: str,
) -> dict[str, Any]:
    """A task's message, as it is about to be published, as plain JSON."""
    content_type, encoding, data = dumps(body, serializer)
    payload = {"text": data} if isinstance(data, str) else {"base64": _text(data)}
    own = {
        "headers": dict(headers),
        "properties": {name: value for name, value in properties.items() if value is not None},
        "exchange": exchange or "",
        "routing_key": routing_key or "",
        "content_type": content_type,
        "content_encoding": encoding,
        **payload,
    }
    try:
        sealed: dict[str, Any] = plain(own, "envelope")
    except NotJson:
        # As the broker would get it: dates in headers become texts, as kombu makes them.
        sealed = plain(json.loads(json.dumps(own)), "envelope")
    return sealed


def send(app: Celery, sealed: Mapping[str, Any], *, has_begun: bool, instead_of: str = "") -> None:
    """Publish a run's message again, under its own task id, in the place of one that was delivered.

    Raises:
        StoreError: what was stored is no message.
    """
    with _reading():
        _publish(app, sealed, has_begun, instead_of)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        # Not its repr: that of a text that cannot be encoded has the whole text, a task's arguments.
        what = f"{type(error).__name__}: {error}"[:200]
        reason = f"The stored message of a run is damaged: {what}. Cancel or delete its agent."
        raise StoreError(reason=reason) from error


def without_retries(sealed: Mapping[str, Any]) -> dict[str, Any]:
    """The message of a run that is to have all its retries before it. Raises what ``send`` does."""
    with _reading():
        return {**sealed, "headers": {**sealed["headers"], "retries": 0}}


def _publish(app: Celery, sealed: Mapping[str, Any], has_begun: bool, instead_of: str) -> None:
    headers = dict(sealed["headers"])
    if has_begun:
        headers.update(dict.fromkeys(_ONLY_BEFORE_THE_START))
    properties = dict(sealed["properties"])
    exchange, routing_key = _address(sealed)
    with app.producer_or_acquire() as producer:
        producer.publish(
            _payload(sealed),
            headers=headers,
            exchange=exchange,
            routing_key=routing_key,
            content_type=sealed["content_type"],
            content_encoding=sealed["content_encoding"],
            retry=True,
            retry_policy=app.conf.task_publish_retry_policy,
            **properties,
        )
        if instead_of:
            # Its worker may not live to acknowledge it.
            Unacked(producer.connection).drop(instead_of)


def content(app: Celery, sealed: Mapping[str, Any]) -> Any:
    """What a message holds: arguments, keyword arguments, and what is embedded beside them.

    Raises:
        ContentDisallowed: it is of a kind that the app does not accept.
    """
    accept = prepare_accept_content(app.conf.accept_content)
    return loads(_payload(sealed), sealed["content_type"], sealed["content_encoding"], accept=accept)


def _address(sealed: Mapping[str, Any]) -> tuple[str, str]:
    exchange, routing_key = sealed["exchange"], sealed["routing_key"]
    if not (isinstance(exchange, str) and isinstance(routing_key, str)):
        # A broker's client has errors of its own for that, as if the broker had refused it.
        raise TypeError("its exchange or routing key is no text")
    return exchange, routing_key


def _payload(sealed: Mapping[str, Any]) -> str | bytes:
    return str(sealed["text"]) if "text" in sealed else base64.b64decode(sealed["base64"])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Unacked:
    """The messages of a Redis broker that are being worked on; elsewhere it does nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def _channel(self) -> Any:
        is_redis = self._connection.transport.driver_type == "redis"
        return self._connection.default_channel if is_redis else None

    def touch(self, tags: list[str]) -> None:
        """Let these messages be delivered just now, so that they do not come back meanwhile."""
        channel = self._channel
        if channel is not None and tags:
            with channel.conn_or_acquire() as client:
                client.zadd(channel.unacked_index_key, dict.fromkeys(tags, _time(client)), xx=True)

    def restore(self, tag: str) -> bool:
        """Put a message back on its queue; False if it is not there any more."""
        channel = self._channel
        if channel is None or not tag:
            return False
        with channel.conn_or_acquire() as client:
            # As kombu does: of other commands it does not know that a prefix goes before the key.
            if client.hget(channel.unacked_key, tag) is None:
                return False
            channel.qos.restore_by_tag(tag, client=client)
            return True

    def untouched_for(self, shortest: float, longest: float) -> list[str]:
        """The messages that were delivered, or last touched, so many seconds ago."""
        channel = self._channel
        if channel is None:
            return []
        with channel.conn_or_acquire() as client:
            now = _time(client)
            span = now - longest, now - shortest
            found = client.zrange(channel.unacked_index_key, *span, byscore=True)
            return [tag.decode() if isinstance(tag, bytes) else tag for tag in found]

    def headers(self, tag: str) -> dict[str, Any]:
        """The headers of a message; none, if it is not there any more."""
        channel = self._channel
        with channel.conn_or_acquire() as client:
            found = client.hget(channel.unacked_key, tag)
        return dict(json.loads(found)[0].get("headers") or {}) if found else {}

    def is_backlogged(self, sealed: Mapping[str, Any]) -> bool:
        """Do messages wait in the queue that this one goes to? It may be one of them.

        Raises:
            StoreError: what was stored is no message.
        """
        channel = self._channel
        if channel is None:
            return False
        with _reading():
            queues = channel._lookup(*_address(sealed))
        return any(channel._size(queue) for queue in queues)

    def drop(self, tag: str) -> None:
        """Forget a message, as if it had been acknowledged."""
        channel = self._channel
        if channel is not None:
            with channel.conn_or_acquire() as client, client.pipeline() as both:
                both.zrem(channel.unacked_index_key, tag).hdel(channel.unacked_key, tag).execute()

    def close(self) -> None:
        """Give up the connection."""
        self._connection.release()


def _time(client: Any) -> float:
    """By the broker's clock: those of the workers may differ by more than a lease lasts."""
    seconds, microseconds = client.time()
    return float(seconds) + float(microseconds) / 1e6
