"""What is specific to the SQLite store."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from celery_ckpt import Checkpoint, Conversation, SqliteCheckpointStore
from celery_ckpt.errors import (
    CheckpointDamaged,
    LeaseLost,
    SchemaTooNew,
    StoreDamaged,
    StoreUnavailable,
)
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.stores.encoding import decoded_run
from celery_ckpt.stores.resources import queries, schema
from celery_ckpt.stores.sqlite import database as database_module
from celery_ckpt.testing import make_checkpoint, make_conversation, make_message, make_run
from tests.support.killed_writers import started


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteCheckpointStore]:
    with SqliteCheckpointStore.open(path) as store:
        yield store


@pytest.fixture
def saved(store: SqliteCheckpointStore) -> list[Checkpoint]:
    conversation, saved = make_conversation(1), []
    for iteration in range(4):
        conversation.append(make_message())
        saved.append(make_checkpoint("agent", conversation, iteration))
        store.save(saved[-1])
    return saved


def change(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def test_the_file_is_private_to_the_user(store: SqliteCheckpointStore, path: Path) -> None:
    store.save(make_checkpoint())

    files = [found for found in path.parent.iterdir() if found.name.startswith("store.db")]
    assert len(files) == 3
    assert {stat.S_IMODE(found.stat().st_mode) for found in files} == {0o600}


def test_a_save_writes_one_row_with_the_new_messages(store: SqliteCheckpointStore, path: Path) -> None:
    conversation = make_conversation(50)
    store.save(make_checkpoint("agent", conversation))
    conversation.append(make_message("the new one"))
    store.save(make_checkpoint("agent", conversation))

    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT base, count, messages FROM ckpt_saves ORDER BY number"
        ).fetchall()
    connection.close()
    assert rows[1] == (51, 1, b'{"role":"user","content":"the new one"}')


def test_the_usual_save_is_one_statement(
    store: SqliteCheckpointStore, saved: list[Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A compaction is compared in detail, and every save after it is an ordinary one again.
    compacted = Conversation(messages=saved[-1].conversation.messages[:2])
    store.save(make_checkpoint("agent", compacted))
    monkeypatch.setattr(SqliteCheckpointStore, "_append_in_detail", None)

    store.save(make_checkpoint("agent", compacted))
    compacted.append(make_message())
    store.save(make_checkpoint("agent", compacted))
    lease = store.acquire("agent", "me", 60)
    latest = store.load_latest("agent")
    assert latest is not None
    store.save(make_checkpoint("agent", latest.conversation), lease)
    assert len(store.list("agent")) == 8


def test_a_released_lease_without_a_nonce_does_not_allow_writes(
    store: SqliteCheckpointStore, saved: list[Checkpoint]
) -> None:
    lease = store.acquire("agent", "me", 60)
    store.release(lease)
    forged = lease.model_copy(update={"nonce": ""})

    with pytest.raises(LeaseLost):
        store.save(make_checkpoint("agent", saved[-1].conversation), forged)
    assert len(store.list("agent")) == 4


def test_a_save_does_not_join_an_abandoned_transaction(
    store: SqliteCheckpointStore, saved: list[Checkpoint], path: Path
) -> None:
    store._database._connected().execute("BEGIN IMMEDIATE")
    checkpoint = make_checkpoint("agent", saved[-1].conversation, 9)
    store.save(checkpoint)

    with SqliteCheckpointStore.open(path) as other:
        assert other.load_latest("agent") == checkpoint


def test_a_damaged_record_loses_only_its_checkpoint(
    store: SqliteCheckpointStore, saved: list[Checkpoint], path: Path
) -> None:
    for damage in (b"{}", b"", b"1 2 3", b'{"foreign": "json"}'):
        change(path, "UPDATE ckpt_saves SET record = ? WHERE id = ?", damage, saved[1].id)

        with pytest.raises(CheckpointDamaged, match=f"{saved[1].id} of agent 'agent'"):
            store.load(saved[1].id)
        with pytest.raises(CheckpointDamaged) as error:
            store.list("agent")
        assert list(error.value.readable) == [saved[3], saved[2], saved[0]]
        assert store.load_latest("agent") == saved[3]


def test_a_damaged_message_loses_the_checkpoints_that_contain_it(
    store: SqliteCheckpointStore, saved: list[Checkpoint], path: Path
) -> None:
    change(path, "UPDATE ckpt_saves SET messages = ? WHERE id = ?", b'{"role":"user"}', saved[2].id)

    assert store.load(saved[1].id) == saved[1]
    for checkpoint in saved[2:]:
        with pytest.raises(CheckpointDamaged, match=checkpoint.id):
            store.load(checkpoint.id)
    with pytest.raises(CheckpointDamaged):
        store.load_latest("agent")


def test_a_record_of_a_newer_format_is_refused(
    store: SqliteCheckpointStore, saved: list[Checkpoint], path: Path
) -> None:
    change(path, "UPDATE ckpt_saves SET format = 9 WHERE id = ?", saved[3].id)

    with pytest.raises(SchemaTooNew, match="format version 9"):
        store.load_latest("agent")


def test_a_store_of_a_newer_format_is_refused(store: SqliteCheckpointStore, path: Path) -> None:
    change(path, "UPDATE ckpt_format SET version = 2")
    store.close()

    with pytest.raises(SchemaTooNew, match="reads up to 1") as refusal:
        SqliteCheckpointStore.open(path)
    # When the error is raised, every file of the store is closed.
    assert refusal.value
    assert str(path) not in [file.path for file in psutil.Process().open_files()]


@pytest.mark.parametrize("content", [b"this is not a database, but it is long enough" * 50])
def test_a_file_that_is_not_a_database_is_a_clear_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(StoreDamaged, match=r"store\.db cannot be read"):
        SqliteCheckpointStore.open(path)


def test_a_truncated_database_is_an_error_and_never_read_as_empty(path: Path) -> None:
    with SqliteCheckpointStore.open(path) as store:
        for _ in range(50):
            store.save(make_checkpoint())
    path.write_bytes(path.read_bytes()[:-8192])

    with pytest.raises(StoreDamaged):
        _listed(path)


def _listed(path: Path) -> list[Checkpoint]:
    with SqliteCheckpointStore.open(path) as store:
        return store.list("agent")


def test_the_store_can_share_the_database_of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE agents (theirs TEXT)")
        connection.execute("PRAGMA user_version = 7")
    connection.close()

    with SqliteCheckpointStore.open(path) as store:
        store.save(make_checkpoint())
        assert list(store.agents()) == ["agent"]


def test_a_database_locked_by_another_process_is_unavailable(
    store: SqliteCheckpointStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            SqliteCheckpointStore.open(path)
    finally:
        other.close()


def read_in_another_process(path: str, said: Connection) -> None:
    with SqliteCheckpointStore.open(path) as store:
        said.send([checkpoint.iteration for checkpoint in store.list("agent")])


def seen_by_another_process(path: Path) -> list[int]:
    with started(read_in_another_process, str(path)) as (_, heard):
        found: list[int] = heard.recv()
        return found


def test_two_stores_in_one_process_lose_nothing_when_another_process_exits(
    store: SqliteCheckpointStore, path: Path
) -> None:
    store.save(make_checkpoint(iteration=1))
    with SqliteCheckpointStore.open(path):
        assert seen_by_another_process(path) == [1]

        store.save(make_checkpoint(iteration=2))

        assert seen_by_another_process(path) == [2, 1]


def use_a_store_on_both_sides_of_a_fork(path: str, said: Connection) -> None:
    """The parent closes its store first. The child continues with the one that it inherited."""
    store = SqliteCheckpointStore.open(path)
    store.save(make_checkpoint(iteration=1))
    may_go, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(may_go, 1)
        store.save(make_checkpoint(iteration=3))
        os.read(may_go, 1)
        store.save(make_checkpoint(iteration=4))
        os._exit(0)
    store.save(make_checkpoint(iteration=2))
    os.write(go, b"1")
    store.close()
    os.write(go, b"2")
    said.send(os.waitpid(child, 0)[1])


def test_a_store_opened_before_a_fork_works_on_both_sides(
    store: SqliteCheckpointStore, path: Path
) -> None:
    with started(use_a_store_on_both_sides_of_a_fork, str(path)) as (_, heard):
        assert heard.recv() == 0

    assert sorted(seen_by_another_process(path)) == [1, 2, 3, 4]
    assert len(store.list("agent")) == 4


def test_every_statement_is_valid() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(";\n".join(schema()))
    for statement in queries().values():
        values = [0] * max(map(int, re.findall(r"\?(\d+)", statement)), default=0)
        assert connection.execute(f"EXPLAIN {statement}", values).fetchall()
    connection.close()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("UPDATE ckpt_agents SET expires_at = 4611686018427387904, nonce = 'x'", StoreDamaged),
        ("UPDATE ckpt_agents SET key = 4611686018427387904", StoreDamaged),
        ("UPDATE ckpt_saves SET base = -1", CheckpointDamaged),
        ("UPDATE ckpt_saves SET record = NULL", CheckpointDamaged),
    ],
)
def test_an_impossible_value_is_damage(
    store: SqliteCheckpointStore, path: Path, change: str, kind: type[Exception]
) -> None:
    store.save(make_checkpoint("agent"))
    store.close()
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()
    with SqliteCheckpointStore.open(path) as other, pytest.raises(kind):
        assert other.load_latest("agent") == other.activity("agent")


def test_a_page_of_a_long_conversation_reads_only_that_page(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    conversation = make_conversation(1)
    with SqliteCheckpointStore.open(path) as store:
        for iteration in range(1, 101):
            conversation.append(make_message())
            latest = make_checkpoint("agent", conversation, iteration)
            store.save(latest)
        store.prune("agent", keep=1)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "UPDATE ckpt_saves SET messages = x'00' WHERE base NOT BETWEEN 50 AND 54"
            )
        page = store.messages(latest.id, 50, 55)
        assert page is not None
        assert page.messages == conversation.messages[50:55]
        with pytest.raises(CheckpointDamaged):
            store.messages(latest.id, 50, 56)


def test_a_decision_about_turns_reads_few_of_many_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def decoded(agent_id: str, run_id: str, *parts: bytes) -> RunRecord:
        read.append(run_id)
        return decoded_run(agent_id, run_id, *parts)

    with SqliteCheckpointStore.open(tmp_path / "db") as store:
        for number in range(1000):
            store.add_run(make_run("agent", f"run {number}"))
        monkeypatch.setattr("celery_ckpt.stores.sqlite.transaction.decoded_run", decoded)

        given = store.start_run(make_run("agent", "run 999"), "me", 30).next
        assert given is not None
        start = store.start_run(make_run("agent", given.run_id), "me", 30)
        assert start.lease is not None
        ended = start.run.model_copy(update={"status": RunStatus.SUCCEEDED})
        following = store.settle_run(ended, start.lease)

        assert following is not None
        assert (given.run_id, following.run_id) == ("run 0", "run 1")
        assert len(read) <= 6
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        for name, values in (("first_in_line", (1,)), ("join_line", (1, 2))):
            query = f"EXPLAIN QUERY PLAN {queries()[name]}"
            [plan] = [row[-1] for row in connection.execute(query, values)]
            assert "INDEX ckpt_lines (agent=? AND in_line" in plan
