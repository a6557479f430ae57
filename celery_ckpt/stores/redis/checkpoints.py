"""The records of an agent's checkpoints, without their messages: how they are listed and removed.

A script that reads or removes many fields of a hash blocks the server. So a long history is read in
pages, and checkpoints are removed in batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.stores.log.record import low_of
from celery_ckpt.stores.log.store import OLDEST, newest_first
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import FIELD, Keys, id_of
from celery_ckpt.stores.redis.markers import Markers
from celery_ckpt.stores.redis.server import Call, Server

#: The most fields of a hash that one script reads or removes.
LONG = 1000
#: What is left to do after a removal, see ``checkpoint_remove.lua``.
DONE, AGAIN, TRIM, CHANGED = range(4)
#: Why ``agent_delete.lua`` deletes nothing.
_TOO_LONG, _NOT_MARKED, GONE = -1, -2, -3
#: How often a removal starts over because of a concurrent save. The next one trims what is left.
_MAX_TRIM_RACES = 5


class Lines(NamedTuple):
    """The records of an agent, its sequence number before they were read, and its stored policy."""

    seq: int
    policy: bytes
    lines: list[tuple[str, bytes]]


def parsed_policy(where: str, agent_id: str, stored: bytes) -> AgentPolicy:
    """Parse the policy of an agent of the server at ``where``. Raises ``StoreDamaged``."""
    try:
        return AgentPolicy.from_bytes(stored)
    except ValueError as error:
        raise StoreDamaged(where=f"{where}, policy of agent {agent_id!r}", reason=str(error)) from error


class Checkpoints:
    """Lists and removes the checkpoints of an agent."""

    def __init__(self, server: Server, keys: Keys, index: AgentIndex, markers: Markers) -> None:
        self._server, self._keys, self._index, self._markers = server, keys, index, markers

    def lines(self, agent_id: str) -> Lines:
        """Return all records. Whatever is saved while they are read has a higher sequence number."""
        keys = self._keys.of(agent_id, "agent")
        seq, policy, is_long, *flat = self._server.run("checkpoint_list", keys, LONG)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        found = self._paged(agent_id) if is_long else pairs
        return Lines(int(seq), policy, [(id_of(field), line) for field, line in found])

    def _paged(self, agent_id: str) -> Iterable[tuple[bytes, bytes]]:
        """Return, each once, the records that exist from the first page to the last."""
        [key] = self._keys.of(agent_id, "agent")
        found: dict[bytes, bytes] = {}
        cursor = None
        while cursor != 0:
            scan = ("HSCAN", key, cursor or 0, "MATCH", f"{FIELD}*", "COUNT", LONG)
            cursor, page = self._server.command(*scan)
            found.update(page)
        return found.items()

    def page(
        self, agent_id: str, limit: int | None, before: int | None
    ) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Return the policy, and at least the newest ``limit`` records with a smaller number."""
        found: dict[str, bytes] = {}
        keys, cursor, policy = self._keys.of(agent_id, "agent"), b"", b""
        bounds = sys.maxsize if limit is None else limit, "" if before is None else before
        while cursor != b"0":
            cursor, policy, *flat = self._server.run("checkpoint_page", keys, cursor or b"0", *bounds)
            found.update(zip(map(id_of, flat[::2]), flat[1::2], strict=True))
        return policy, list(found.items())

    def remove(self, agent_id: str, checkpoint_ids: list[str]) -> int:
        """See ``CheckpointStore.remove``."""
        removed = 0
        for start in range(0, len(checkpoint_ids) or 1, LONG):
            batch = checkpoint_ids[start : start + LONG]
            removed += self._remove_batch(agent_id, batch)
            self._index.unregister(agent_id, batch)
        return removed

    def _remove_batch(self, agent_id: str, batch: list[str]) -> int:
        removed, going, races = 0, set(batch), 0
        while races < _MAX_TRIM_RACES:
            seq, stored, lines = self.lines(agent_id)
            staying = [named for named in lines if named[0] not in going]
            newest = FIELD + newest_first(staying, damaged=OLDEST)[0][0] if staying else ""
            low = min((low_of(line) for _, line in staying), default=0)
            policy = parsed_policy(self._server.where, agent_id, stored)
            after = policy.without(going)
            count, _, left = self._server.run(
                "checkpoint_remove",
                self._keys.of(agent_id, "agent", "log", "open"),
                seq,
                low,
                newest,
                stored,
                stored if after == policy else after.to_bytes(),
                "",
                *(FIELD + name for name in batch),
            )
            removed += count
            races += left == AGAIN
            if left == DONE:
                break
        return removed

    def delete_agent(self, agent_id: str, remember: float) -> int:
        """See ``CheckpointStore.delete``."""
        keys = self._keys.all_of(agent_id)
        marked, known, size, fields = set[str](), list[bytes](), _NOT_MARKED, list[bytes]()
        changed: bytes | None = None
        while size in (_TOO_LONG, _NOT_MARKED):
            state = self._markers.mark_runs(agent_id, remember, marked) if remember else b"*"
            noted = Call.command("HGET", keys[0], "changed")
            delete = Call.script("agent_delete", keys, "", int(bool(known)), state)
            [[changed, (size, *fields)]] = self._server.together(Call.joined(noted, delete))
            if size == _TOO_LONG:
                known = [field for field, _ in self._paged(agent_id)]
        fields = known or fields
        self._index.remove(agent_id, changed)
        self._index.unregister(agent_id, [id_of(field) for field in fields])
        return len(fields)
