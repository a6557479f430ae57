"""What our stores are compared with: a naive store, and bare commands that do part of the work."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from benchmarks.contenders import LIMIT, NAIVE, Contender, Place
from benchmarks.work import Work
from celery_ckpt import Checkpoint, Conversation
from celery_ckpt.checkpoint import assemble
from celery_ckpt.conversation import Spine
from celery_ckpt.json_values import decode
from celery_ckpt.messages import Message

_BATCH = 10


class NaiveJson(Contender):
    """Saves the whole conversation as one JSON value, under a new key each time."""

    name, kind = "naive: whole JSON, Redis", NAIVE
    note = "SET of the whole conversation to a new key; it keeps its keys in memory"

    def __init__(self, place: Place) -> None:
        self._place, self._client = place, place.client()
        self._keys: dict[str, list[str]] = {}

    def save(self, prepared: Work) -> None:
        key = f"naive:{prepared.checkpoint.id}"
        self._client.set(key, json.dumps(prepared.plain))
        self._keys.setdefault(prepared.agent_id, []).append(key)

    def load_latest(self, agent_id: str) -> Any:
        return _parsed(self._client.get(self._keys[agent_id][-1]))

    def list(self, agent_id: str) -> Iterator[Any]:
        keys = self._keys[agent_id][::-1]
        for start in range(0, len(keys), _BATCH):
            yield from map(_parsed, self._client.mget(keys[start : start + _BATCH]))

    def prune(self, agent_id: str, keep: int) -> int:
        keys = self._keys[agent_id]
        gone = keys[: len(keys) - keep]
        pipeline = self._client.pipeline(transaction=False)
        for key in gone:
            pipeline.delete(key)
        self._keys[agent_id] = keys[len(gone) :]
        return sum(pipeline.execute())

    def stored_bytes(self) -> int:
        return self._place.bytes_in_redis()

    def close(self) -> None:
        self._client.close()


def _parsed(text: Any) -> Conversation:
    return Conversation(messages=json.loads(text))


class RedisCommands(Contender):
    """Commands that do part of the work of a store, sent one by one with redis-py."""

    name, kind = "limit: Redis commands", LIMIT
    note = "RPUSH of the new messages; GET of one JSON and parsing it into a Checkpoint; pipelined HDEL"

    def __init__(self, place: Place) -> None:
        self._place, self._client = place, place.client()
        self._fields: list[str] = []

    def save(self, prepared: Work) -> None:
        self._client.rpush(f"bare:{prepared.agent_id}", *prepared.new)

    def before_reading(self, work: Work) -> None:
        self.put_json(work.checkpoint)
        header = b"%0200d" % work.iteration
        self._fields = [f"{work.checkpoint.id}{number:05}" for number in range(work.iteration)]
        self._client.hset("bare:heads", mapping=dict.fromkeys(self._fields, header))

    def put_json(self, checkpoint: Checkpoint) -> None:
        """Write the JSON value that ``load_latest`` reads."""
        self._client.set(f"bare:{checkpoint.agent_id}:json", checkpoint.to_bytes())

    def load_latest(self, agent_id: str) -> Any:
        text: Any = self._client.get(f"bare:{agent_id}:json")
        return _assembled(text)

    def prune(self, agent_id: str, keep: int) -> int:
        return self.remove_fields("bare:heads", self._fields[: len(self._fields) - keep])

    def remove_fields(self, key: str | bytes, fields: list[str]) -> int:
        """Remove the fields by one HDEL each, in one pipeline."""
        pipeline = self._client.pipeline(transaction=False)
        for field in fields:
            pipeline.hdel(key, field)
        return sum(pipeline.execute())

    def stored_bytes(self) -> int:
        return self._place.bytes_in_redis()

    def close(self) -> None:
        self._client.close()


class SqliteInsert(Contender):
    """One INSERT of the new messages, and nothing else."""

    name, kind = "limit: SQLite INSERT", LIMIT
    note = "INSERT of the new messages in WAL mode with synchronous=NORMAL"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection = sqlite3.connect(place.directory / "bare.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, agent TEXT, new BLOB)")

    def prepare(self, work: Work) -> tuple[str, bytes]:
        return work.agent_id, b"\n".join(work.new)

    def save(self, prepared: tuple[str, bytes]) -> None:
        self._connection.execute("INSERT INTO log (agent, new) VALUES (?, ?)", prepared)

    def stored_bytes(self) -> int:
        return self._place.bytes_on_disk()

    def close(self) -> None:
        self._connection.close()


def _assembled(text: bytes) -> Checkpoint:
    """Return the same models from one JSON value without validation, the cheapest way in pydantic."""
    found = decode(text)
    spine = Spine()
    spine.messages += [Message.model_construct(root=message) for message in found["messages"]]
    return assemble(Checkpoint, found["agent_id"], found["id"], found["header"], spine)
