"""The messages of a Redis broker that workers have received and not acknowledged.

On Redis a delivered message stays in ``unacked`` until it is acknowledged, and is redelivered after the
visibility timeout. A long attempt postpones that (``touch``); the message of a dead attempt is put back
on its queue at once (``restore``). Other brokers do the same by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu.connection import Connection
from kombu.utils import json

from celery_ckpt.runtime.broker.envelope import address_of, reading_envelope


class Unacked:
    """The unacknowledged messages of a Redis broker. With other brokers, every method does nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def _channel(self) -> Any:
        is_redis = self._connection.transport.driver_type == "redis"
        return self._connection.default_channel if is_redis else None

    def touch(self, tags: list[str]) -> None:
        """Restart the visibility timeout of these messages."""
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
            # Only commands that kombu uses itself: with others it does not apply its key prefix.
            if client.hget(channel.unacked_key, tag) is None:
                return False
            channel.qos.restore_by_tag(tag, client=client)
            return True

    def untouched_for(self, shortest: float, longest: float) -> list[str]:
        """Return the tags of messages whose last delivery or ``touch`` was within this range of
        seconds ago.
        """
        channel = self._channel
        if channel is None:
            return []
        with channel.conn_or_acquire() as client:
            now = _time(client)
            span = now - longest, now - shortest
            found = client.zrange(channel.unacked_index_key, *span, byscore=True)
            return [tag.decode() if isinstance(tag, bytes) else tag for tag in found]

    def headers(self, tag: str) -> dict[str, Any]:
        """Return the headers of a message; an empty dict if it is not there any more."""
        channel = self._channel
        with channel.conn_or_acquire() as client:
            found = client.hget(channel.unacked_key, tag)
        return dict(json.loads(found)[0].get("headers") or {}) if found else {}

    def is_backlogged(self, envelope: Mapping[str, Any]) -> bool:
        """True if the queue of this message is not empty. The message may be in it.

        Raises:
            StoreError: the stored envelope is damaged.
        """
        channel = self._channel
        if channel is None:
            return False
        with reading_envelope():
            queues = channel._lookup(*address_of(envelope))
        return any(channel._size(queue) for queue in queues)

    def drop(self, tag: str) -> None:
        """Remove a message, as if it had been acknowledged."""
        channel = self._channel
        if channel is not None:
            with channel.conn_or_acquire() as client, client.pipeline() as both:
                both.zrem(channel.unacked_index_key, tag).hdel(channel.unacked_key, tag).execute()

    def close(self) -> None:
        """Close the connection."""
        self._connection.release()


def _time(client: Any) -> float:
    """Return the broker's time: workers' clocks may differ by more than the duration of a lease."""
    seconds, microseconds = client.time()
    return float(seconds) + float(microseconds) / 1e6
