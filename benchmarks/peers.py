"""LangGraph's savers on the same work, if they are installed.

The conversation is the channel ``messages``, a list of plain objects: of what LangGraph accepts, that
is the cheapest to pack.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from benchmarks.contenders import PEER, Contender, Place
from benchmarks.work import Turn

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
        can_prune = _can_prune(saver)
        self.note = "prune is " + ("keep_latest" if can_prune else "delete_thread: there is no other")

    def prepare(self, turn: Turn) -> tuple[Any, ...]:
        from langgraph.checkpoint.base import empty_checkpoint

        agent_id = turn.agent_id
        version = self.saver.get_next_version(self._versions.get(agent_id), None)
        self._versions[agent_id] = version
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {_CHANNEL: turn.plain}
        checkpoint["channel_versions"] = {_CHANNEL: version}
        config = self._configs.get(agent_id, _config(agent_id))
        metadata = {"source": "loop", "step": turn.iteration, "run_id": turn.checkpoint.run_id}
        return agent_id, config, checkpoint, metadata, {_CHANNEL: version}

    def save(self, prepared: tuple[Any, ...]) -> None:
        agent_id, *arguments = prepared
        self._configs[agent_id] = self.saver.put(*arguments)

    def load_latest(self, agent_id: str) -> Any:
        return self.saver.get_tuple(_config(agent_id))

    def list(self, agent_id: str) -> Iterator[Any]:
        found: Iterator[Any] = self.saver.list(_config(agent_id))
        return found

    def prune(self, agent_id: str, keep: int) -> int:
        there = self._versions.pop(agent_id)
        count = int(str(there).partition(".")[0])
        if _can_prune(self.saver):
            self.saver.prune([agent_id], strategy="keep_latest")
            return count - 1
        self.saver.delete_thread(agent_id)
        return count

    def stored_bytes(self) -> int:
        return self._count_bytes()

    def close(self) -> None:
        self.resources.close()


def _config(agent_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": agent_id, "checkpoint_ns": ""}}


def _can_prune(saver: Any) -> bool:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    return type(saver).prune is not BaseCheckpointSaver.prune


def langgraph_memory(place: Place) -> Contender:
    """InMemorySaver: it packs what it keeps."""
    from langgraph.checkpoint.memory import InMemorySaver

    saver = InMemorySaver()
    return LangGraphSaver(
        "LangGraph InMemorySaver", saver, lambda: sum(len(blob) for _, blob in saver.blobs.values())
    )


def langgraph_sqlite(place: Place) -> Contender:
    """SqliteSaver, as it opens a file."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    resources = ExitStack()
    opened = SqliteSaver.from_conn_string(str(place.directory / "langgraph.db"))
    saver = resources.enter_context(opened)
    contender = LangGraphSaver("LangGraph SqliteSaver", saver, place.bytes_on_disk)
    contender.resources = resources
    return contender


def langgraph_postgres(place: Place) -> Contender:
    """PostgresSaver, in a schema of its own that goes away afterwards."""
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

    contender = LangGraphSaver("LangGraph PostgresSaver", saver, count_bytes)
    contender.resources = resources
    return contender


def peers() -> tuple[list[Callable[[Place], Contender]], list[str]]:
    """Those that can be measured here, and why the others cannot."""
    if not find_spec("langgraph") or not find_spec("langgraph.checkpoint.sqlite"):
        return [], ["LangGraph's savers are not installed: pip install 'celery-ckpt[bench]'"]
    found: list[Callable[[Place], Contender]] = [langgraph_memory, langgraph_sqlite]
    if not find_spec("langgraph.checkpoint.postgres"):
        return found, ["LangGraph's PostgresSaver is not installed"]
    if not os.environ.get(POSTGRES_URL):
        return found, [f"LangGraph's PostgresSaver needs a database: set {POSTGRES_URL} to its URL"]
    return [*found, langgraph_postgres], []
