"""The checkpoints of an agent in Redis, without their messages; a long history page by page."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import NamedTuple

from celery_ckpt.stores.redis.keys import FIELD, shown
from celery_ckpt.stores.redis.runs import RedisTurns

#: A script that reads more fields of a hash than this would keep others waiting.
LONG = 1000
_PREFIX = len(FIELD)


class Lines(NamedTuple):
    """The checkpoints of an agent, the sequence they stand at, and the agent's notes as stored."""

    seq: int
    policy: bytes
    lines: builtins.list[tuple[str, bytes]]


class RedisReading(RedisTurns):
    """The part of the store that reads records."""

    def _sequence_and_lines(self, agent_id: str) -> Lines:
        # The sequence first: what is saved while pages are read has a higher one.
        seq, policy, is_long, *flat = self._server.run(
            "checkpoint_list", self._keys.of(agent_id, "agent"), LONG
        )
        pairs = zip(flat[::2], flat[1::2], strict=True)
        found = self._paged(agent_id) if is_long else pairs
        return Lines(int(seq), policy, [(id_of(field), line) for field, line in found])

    def _paged(self, agent_id: str) -> Iterable[tuple[bytes, bytes]]:
        """The records of a long history: all that are there from beginning to end, each once."""
        [key] = self._keys.of(agent_id, "agent")
        found: dict[bytes, bytes] = {}
        cursor = None
        while cursor != 0:
            scan = ("HSCAN", key, cursor or 0, "MATCH", f"{FIELD}*", "COUNT", LONG)
            cursor, page = self._server.command(*scan)
            found.update(page)
        return found.items()


def id_of(field: bytes) -> str:
    """The id in the name of a field."""
    return shown(field[_PREFIX:])
