"""LangGraph's savers with the same work, if they are installed.

The conversation is the channel ``messages``, a list of plain objects, which is the cheapest form for
LangGraph to serialize. Each saver is measured with the default channel, which is saved as a whole, and
the durable ones also with ``DeltaChannel``, which saves what is new, and sometimes a snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import chain
from typing import Any
from uuid import uuid4

from benchmarks.contenders import PEER, Contender, Place
from benchmarks.work import Work

#: The environment variable with the URL of a Postgres database that may be used.
POSTGRES_URL = "CKPT_BENCH_POSTGRES_URL"
_CHANNEL = "messages"


class LangGraphSaver(Contender):
    """Any of LangGraph's savers."""

    kind = PEER
    survives_prune = False

    def __init__(self, name: str, saver: Any, count_bytes: Callable[[], int]) -> None:
        self.name, self.saver, self._count_bytes = name, saver, count_bytes
        self.resources = ExitStack()
        self._configs: dict[str, Any] = {}
        self._versions: dict[str, Any] = {}
        self._keeps_latest = _can_prune(saver)
        whole = "delete_thread, the only one it has"
        self.note = f"prune is {'keep_latest' if self._keeps_latest else whole}"

    def prepare(self, work: Work) -> tuple[Any, ...]:
        from langgraph.checkpoint.base import empty_checkpoint

        agent_id = work.agent_id
        version = self.saver.get_next_version(self._versions.get(agent_id), None)
        self._versions[agent_id] = version
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {_CHANNEL: work.plain}
        checkpoint["channel_versions"] = {_CHANNEL: version}
        config = self._configs.get(agent_id, _config(agent_id))
        metadata = {"source": "loop", "step": work.iteration, "run_id": work.checkpoint.run_id}
        return agent_id, config, checkpoint, metadata, {_CHANNEL: version}

    def save(self, prepared: tuple[Any, ...]) -> None:
        agent_id, *arguments = prepared
        self._configs[agent_id] = self.saver.put(*arguments)

    def before_reading(self, work: Work) -> None:
        """Check that the saver loads what was saved."""
        if self.load_latest(work.agent_id) != work.plain:
            raise RuntimeError(f"{self.name} does not load what was saved")

    def load_latest(self, agent_id: str) -> Any:
        return self._messages(self.saver.get_tuple(_config(agent_id)))

    def _messages(self, found: Any) -> Any:
        return found.checkpoint["channel_values"][_CHANNEL]

    def list(self, agent_id: str) -> Iterator[Any]:
        return map(self._messages, self.saver.list(_config(agent_id)))

    def prune(self, agent_id: str, keep: int) -> int:
        there = self._versions.pop(agent_id)
        count = int(str(there).partition(".")[0])
        if self._keeps_latest:
            self.saver.prune([agent_id], strategy="keep_latest")
            return count - 1
        self.saver.delete_thread(agent_id)
        return count

    def stored_bytes(self) -> int:
        return self._count_bytes()

    def close(self) -> None:
        self.resources.close()


class LangGraphDelta(LangGraphSaver):
    """A saver whose conversation is a ``DeltaChannel``.

    As in LangGraph's own loop, the new messages are writes of the previous checkpoint, and a checkpoint
    contains the whole channel only every ``snapshot_frequency``-th time.
    """

    def __init__(self, name: str, saver: Any, count_bytes: Callable[[], int]) -> None:
        from langgraph.channels.delta import DeltaChannel

        super().__init__(f"{name}, DeltaChannel", saver, count_bytes)
        self._channel = DeltaChannel(_extended, list)
        self._channel.key = _CHANNEL
        # keep_latest refuses threads with a DeltaChannel.
        self._keeps_latest = False
        every = self._channel.snapshot_frequency
        self.note = (
            f"beta; a snapshot every {every} updates; prune is delete_thread, the only one it has"
        )

    def prepare(self, work: Work) -> tuple[Any, ...]:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.serde.types import _DeltaSnapshot

        if work.agent_id not in self._configs:
            # The first messages are writes of this checkpoint.
            root, metadata = empty_checkpoint(), {"source": "input", "step": 0}
            self._configs[work.agent_id] = self.saver.put(_config(work.agent_id), root, metadata, {})
        agent_id, config, checkpoint, metadata, versions = super().prepare(work)
        since = work.iteration % self._channel.snapshot_frequency
        if since:
            checkpoint["channel_values"] = {}
            metadata["counters_since_delta_snapshot"] = {_CHANNEL: (since, since)}
        else:
            checkpoint["channel_values"] = {_CHANNEL: _DeltaSnapshot(work.plain)}
        writes = [(_CHANNEL, work.plain[-2:])]
        return agent_id, writes, str(uuid4()), config, checkpoint, metadata, versions

    def list(self, agent_id: str) -> Iterator[Any]:
        # Complete the list first: SqliteSaver holds its lock while it lists, and a channel needs it
        # too.
        return map(self._messages, [*self.saver.list(_config(agent_id))])

    def save(self, prepared: tuple[Any, ...]) -> None:
        agent_id, writes, task_id, config, *arguments = prepared
        self.saver.put_writes(config, writes, task_id)
        super().save((agent_id, config, *arguments))

    def _messages(self, found: Any) -> Any:
        from langgraph.pregel._checkpoint import channels_from_checkpoint

        channels, _ = channels_from_checkpoint(
            {_CHANNEL: self._channel}, found.checkpoint, saver=self.saver, config=found.config
        )
        return channels[_CHANNEL].get()


def _extended(messages: list[Any], updates: Sequence[list[Any]]) -> list[Any]:
    """Return the messages with the new ones: the reducer of the channel."""
    return [*messages, *chain.from_iterable(updates)]


def _config(agent_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": agent_id, "checkpoint_ns": ""}}


def _can_prune(saver: Any) -> bool:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    return type(saver).prune is not BaseCheckpointSaver.prune


def langgraph_memory(place: Place) -> Contender:
    """Return InMemorySaver, which serializes what it keeps."""
    from langgraph.checkpoint.memory import InMemorySaver

    saver = InMemorySaver()
    return LangGraphSaver(
        "LangGraph InMemorySaver", saver, lambda: sum(len(blob) for _, blob in saver.blobs.values())
    )


def langgraph_sqlite(place: Place) -> Contender:
    """Return SqliteSaver on a file."""
    return _sqlite(place, LangGraphSaver)


def langgraph_sqlite_delta(place: Place) -> Contender:
    """Return the saver with DeltaChannel."""
    return _sqlite(place, LangGraphDelta)


def _sqlite(place: Place, kind: type[LangGraphSaver]) -> Contender:
    from langgraph.checkpoint.sqlite import SqliteSaver

    resources = ExitStack()
    opened = SqliteSaver.from_conn_string(str(place.directory / "langgraph.db"))
    saver = resources.enter_context(opened)
    contender = kind("LangGraph SqliteSaver", saver, place.bytes_on_disk)
    contender.resources = resources
    return contender


def langgraph_postgres(place: Place) -> Contender:
    """Return PostgresSaver in a schema that is dropped afterwards."""
    return _postgres(LangGraphSaver)


def langgraph_postgres_delta(place: Place) -> Contender:
    """Return the saver with DeltaChannel."""
    return _postgres(LangGraphDelta)


def _postgres(kind: type[LangGraphSaver]) -> Contender:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row

    schema = f"ckpt_bench_{os.getpid()}"
    resources = ExitStack()
    connect = psycopg.Connection[Any].connect
    connection = resources.enter_context(
        connect(os.environ[POSTGRES_URL], autocommit=True, prepare_threshold=0, row_factory=dict_row)
    )
    connection.execute(f"CREATE SCHEMA {schema}")
    resources.callback(connection.execute, f"DROP SCHEMA {schema} CASCADE")
    connection.execute(f"SET search_path TO {schema}")
    saver = PostgresSaver(connection)
    saver.setup()
    query = "SELECT sum(pg_total_relation_size(c.oid)) AS n FROM pg_class c WHERE relkind = 'r'"
    query += f" AND relnamespace = '{schema}'::regnamespace"

    def count_bytes() -> int:
        row: Any = connection.execute(query).fetchone()
        return int(row["n"])

    contender = kind("LangGraph PostgresSaver", saver, count_bytes)
    contender.resources = resources
    return contender


def peers() -> tuple[list[Callable[[Place], Contender]], list[str]]:
    """Return the peers that can be measured here, and why the others cannot."""
    if not find_spec("langgraph") or not find_spec("langgraph.checkpoint.sqlite"):
        return [], ["LangGraph's savers are not installed: pip install 'celery-ckpt[bench]'"]
    found: list[Callable[[Place], Contender]] = [
        langgraph_memory,
        langgraph_sqlite,
        langgraph_sqlite_delta,
    ]
    if not find_spec("langgraph.checkpoint.postgres"):
        return found, ["LangGraph's PostgresSaver is not installed"]
    if not os.environ.get(POSTGRES_URL):
        return found, [f"LangGraph's PostgresSaver needs a database: set {POSTGRES_URL} to its URL"]
    return [*found, langgraph_postgres, langgraph_postgres_delta], []
