"""RedisCheckpointStore: plain Redis from 6.2 on and Valkey, alone, behind Sentinel or as a cluster.

All keys of an agent carry its name as their hash tag, so that one script is one atomic step and a
cluster keeps them together. ``docs/reference/storage-format.md`` describes every key.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.names import checked_name
from celery_ckpt.records import Finding, Lease, RunRecord
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, Durability
from celery_ckpt.stores.log.draft import Basis, Draft
from celery_ckpt.stores.log.ranges import Span
from celery_ckpt.stores.log.record import Record, low_of
from celery_ckpt.stores.log.store import (
    OLDEST,
    BasisGone,
    SavedBefore,
    Stored,
    newest_first,
    ranges_of_all,
)
from celery_ckpt.stores.redis.addresses import AnyClient, connect, without_password
from celery_ckpt.stores.redis.doctor import findings_of
from celery_ckpt.stores.redis.durability import server_for
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import FIELD, Keys
from celery_ckpt.stores.redis.leases import fence, refuse
from celery_ckpt.stores.redis.pruning import AGAIN, DONE
from celery_ckpt.stores.redis.reading import LONG, id_of
from celery_ckpt.stores.redis.rewrite import RedisRewriting
from celery_ckpt.stores.redis.risks import risks_of
from celery_ckpt.stores.redis.server import Call

DEFAULT_KEY_PREFIX = "ckpt:"
#: How often a prune starts over because somebody saved in between; the next prune trims what is left.
_MAX_TRIM_RACES = 5
#: So many of a log's newest messages are read with the latest checkpoint, which rarely needs others.
_NEWEST = 4096


class RedisCheckpointStore(RedisRewriting):
    """Keeps everything in Redis or Valkey. A client that was passed in is never closed.

    With ``durability`` a write returns when it is on the server's disk, or on a replica.
    """

    def __init__(
        self,
        client: AnyClient,
        *,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
        where: str = "the given client",
        durability: Durability = "default",
    ) -> None:
        super().__init__(max_checkpoint_bytes=max_checkpoint_bytes)
        self._keys = Keys(key_prefix)
        self._server, self._durability = server_for(client, where, durability), durability
        self._index = AgentIndex(self._server, self._keys)
        self._owns_client = False

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Open a store by its URL; the forms are listed in ``celery_ckpt.stores.redis.addresses``."""
        store = cls(connect(url), where=without_password(url), **options)
        store._owns_client = True
        return store

    def close(self) -> None:
        """Close the connections, if the store made them."""
        if self._owns_client:
            self._server.client.close()

    def risks(self) -> builtins.list[str]:
        """See ``CheckpointStore``."""
        return risks_of(self._server, self._durability)

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        """See ``CheckpointStore``."""
        return findings_of(self, repair)

    # -- checkpoints ---------------------------------------------------------------------------------

    def _append(
        self,
        agent_id: str,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
    ) -> int:
        self._index.ensure(agent_id)
        basis, seen = draft.basis, b""
        ending = () if run is None else (run.run_id, self._line(run))
        while True:
            reply = self._server.run(
                "checkpoint_save",
                self._keys.of(agent_id, "agent", "log", *(("runs",) if run else ())),
                FIELD + checkpoint_id,
                basis.value if isinstance(basis, Basis) else FIELD + basis,
                draft.mark,
                fence(agent_id, lease),
                draft.rest,
                seen,
                *ending,
                *draft.messages,
            )
            if isinstance(reply, int):
                return reply
            status, *facts = reply
            if status != b"unlisted":
                break
            # The first save since a sweep was done with the agent; another one may be at work.
            self._index.add(agent_id)
            seen = facts[0]
        if status == b"exists":
            raise SavedBefore(Record.parse(agent_id, checkpoint_id, facts[0]).digest)
        if status == b"stale":
            self._index.forget(agent_id)
            raise BasisGone
        refuse(reply, agent_id, lease, run.run_id if run else "")
        self._index.add(agent_id)
        return int(facts[0])

    def _register(self, checkpoint_id: str, agent_id: str) -> None:
        self._index.register(checkpoint_id, agent_id)

    def _read(self, agent_id: str, checkpoint_id: str | None) -> Stored | None:
        (status, *found), newest = self._found(agent_id, checkpoint_id)
        if status == b"none":
            return None
        name = id_of(found[0])
        if status == b"gone":
            raise CheckpointDamaged(
                agent_id=agent_id, checkpoint_id=name, reason="its record is missing"
            )
        if status == b"newest":
            return Stored(agent_id, name, found[1], dict(enumerate(newest, int(found[2]))))
        record = Record.parse(agent_id, name, found[1])
        return Stored(agent_id, name, found[1], _by_offset(record.spans, found[2:]))

    def _found(self, agent_id: str, checkpoint_id: str | None) -> tuple[Any, builtins.list[bytes]]:
        """Return the reply of ``checkpoint_load.lua`` and, for the latest, the log's newest messages."""
        keys = self._keys.of(agent_id, "agent", "log")
        if checkpoint_id is None:
            read = Call.script("checkpoint_load", keys, "", _NEWEST)
            newest = Call.command("LRANGE", keys[1], -_NEWEST, -1)
            if (both := self._server.at_once(read, newest)) is not None:
                return both[0], both[1]
        field = FIELD + checkpoint_id if checkpoint_id else ""
        return self._server.run("checkpoint_load", keys, field, 0), []

    def _read_many(
        self, agent_id: str, limit: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], Mapping[int, bytes]]:
        lines = newest_first(self._lines(agent_id))[:limit]
        spans = ranges_of_all(agent_id, lines).spans
        first, *reply = self._server.run(
            "checkpoint_messages",
            self._keys.of(agent_id, "agent", "log"),
            len(lines),
            *(FIELD + name for name, _ in lines),
            *(number for start, count, _ in spans for number in (start, count)),
        )
        there = [named for named, is_there in zip(lines, reply, strict=False) if is_there]
        # The log may have been trimmed since the lines were read.
        left = [
            (max(start, first), start + count - max(start, first), new) for start, count, new in spans
        ]
        return there, _by_offset(left, reply[len(lines) :])

    def _lines(self, agent_id: str) -> Iterable[tuple[str, bytes]]:
        return self._sequence_and_lines(agent_id).lines

    def _agents_that_may_have(self, checkpoint_id: str) -> Iterable[str]:
        return self._index.agents_that_may_have(checkpoint_id)

    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        """See ``CheckpointStore``."""
        for checkpoint_id in checkpoint_ids:
            checked_name(checkpoint_id, "A checkpoint id")
        checked_name(agent_id)
        removed = 0
        for start in range(0, len(checkpoint_ids) or 1, LONG):
            batch = checkpoint_ids[start : start + LONG]
            removed += self._remove_batch(agent_id, batch)
            self._index.unregister(agent_id, batch)
        return removed

    def _remove_batch(self, agent_id: str, batch: builtins.list[str]) -> int:
        removed, going, races = 0, set(batch), 0
        while races < _MAX_TRIM_RACES:
            seq, told, lines = self._sequence_and_lines(agent_id)
            staying = [named for named in lines if named[0] not in going]
            newest = FIELD + newest_first(staying, damaged=OLDEST)[0][0] if staying else ""
            keys = self._keys.of(agent_id, "agent", "log", "open")
            low = min((low_of(line) for _, line in staying), default=0)
            policy = self._parsed_policy(agent_id, told)
            after = policy.without(going)
            noted = (told, told if after == policy else after.to_bytes())
            fields = (FIELD + name for name in batch)
            count, _, left = self._server.run(
                "checkpoint_remove", keys, seq, low, newest, *noted, "", *fields
            )
            removed += count
            races += left == AGAIN
            if left == DONE:
                break
        return removed

    def delete(self, agent_id: str) -> int:
        """See ``CheckpointStore``."""
        keys = self._keys.all_of(checked_name(agent_id))
        size, *fields = self._server.run("agent_delete", keys, "", 0)
        if size < 0:
            fields = [field for field, _ in self._paged(agent_id)]
            self._server.run("agent_delete", keys, "", 1)
        self._index.remove(agent_id)
        self._index.unregister(agent_id, [id_of(field) for field in fields])
        return len(fields)

    def agents(self) -> Iterator[str]:
        """See ``CheckpointStore``."""
        return self._index.agents()


def _by_offset(spans: Iterable[Span], parts: builtins.list[builtins.list[bytes]]) -> dict[int, bytes]:
    """The messages by their offsets. A log that ends too early lacks its last ones."""
    messages: dict[int, bytes] = {}
    for (start, _, _), lines in zip(spans, parts, strict=False):
        messages.update(enumerate(lines, start))
    return messages
