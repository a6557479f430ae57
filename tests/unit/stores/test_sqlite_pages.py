"""Pages of agents in SQLite: which index they use, how many statements, and what they do not read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_ckpt import SqliteCheckpointStore
from celery_ckpt.records import RunStatus
from celery_ckpt.stores.resources import queries
from celery_ckpt.testing.contract.agent_pages import all_of, names
from celery_ckpt.testing.factories import make_checkpoint, make_run

COUNT = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteCheckpointStore]:
    with SqliteCheckpointStore.open(tmp_path / "store.db") as store:
        yield store


def fill(store: SqliteCheckpointStore) -> list[str]:
    """Add agents with a checkpoint and two runs each; return their names, the newest first."""
    everybody = [f"agent-{number}" for number in range(COUNT)]
    for name in everybody:
        store.save(make_checkpoint(name))
        for run_id in ("old", "new"):
            store.add_run(make_run(name, run_id, envelope={"args": "long"}), due_in=60)
    return everybody[::-1]


@pytest.mark.parametrize(
    ("query", "args", "index"),
    [
        ("page", (1, "", 10, ""), "ckpt_changes "),
        ("page_by_status", (1, "", 10, "", "failed"), "ckpt_changes_by_status "),
        ("run_outlines", (1, 9, 10), "ckpt_runs_in_order "),
    ],
)
def test_a_page_is_read_by_an_index_and_not_sorted(
    store: SqliteCheckpointStore, query: str, args: tuple[object, ...], index: str
) -> None:
    connection = store._database._connection
    assert connection is not None
    plan = connection.execute(f"EXPLAIN QUERY PLAN {queries()[query]}", args).fetchall()
    [step] = [text for *_, text in plan]
    assert step.startswith("SEARCH")
    assert f"INDEX {index}" in step


def test_a_page_takes_a_few_statements_per_agent(store: SqliteCheckpointStore) -> None:
    everybody = fill(store)
    connection, statements = store._database._connection, list[str]()
    assert connection is not None
    connection.set_trace_callback(statements.append)
    page = store.page(limit=50)
    assert names(page.agents) == everybody[:50]
    reading = [text for text in statements if text.startswith("SELECT")]
    # One for the names; of each agent: itself, its run, its latest checkpoint, and two counts.
    assert len(reading) == 1 + 5 * 50


def test_neither_a_page_nor_outlines_read_payloads_and_messages(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with SqliteCheckpointStore.open(path) as store:
        fill(store)
    with SqliteCheckpointStore.open(path) as store:
        read: set[tuple[str | None, str | None]] = set()

        def note(action: int, table: str | None, column: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ:
                read.add((table, column))
            return sqlite3.SQLITE_OK

        connection = store._database._connection
        assert connection is not None
        connection.set_authorizer(note)
        assert len(all_of(store)) == len(all_of(store, "queued", limit=7)) == COUNT
        assert len(store.run_outlines("agent-1")) == 2
    assert ("ckpt_runs", "outline") in read
    assert not {("ckpt_runs", "payload"), ("ckpt_saves", "messages")} & read


def test_doctor_finds_a_wrong_status_and_writes_it_again(store: SqliteCheckpointStore) -> None:
    fill(store)
    connection = store._database._connection
    assert connection is not None
    connection.execute("UPDATE ckpt_agents SET status = 'failed' WHERE agent_id = 'agent-7'")
    connection.commit()
    [found] = store.findings()
    assert (found.kind, found.subject, found.can_repair) == ("not listed", "agent-7", True)
    assert [one.repaired for one in store.findings(repair=True)] == [True]
    assert list(store.findings()) == []
    assert all_of(store, RunStatus.FAILED) == []
