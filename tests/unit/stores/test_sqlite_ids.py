"""Which ids of checkpoints the SQLite store must index, and how it finds the others without an
index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_ckpt import Checkpoint, SqliteCheckpointStore
from celery_ckpt.errors import AlreadyExists
from celery_ckpt.records import AgentContents
from celery_ckpt.testing import make_checkpoint, make_conversation

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteCheckpointStore]:
    with SqliteCheckpointStore.open(path) as store:
        yield store


def named(checkpoint_id: str, agent_id: str = "agent") -> Checkpoint:
    checkpoint = make_checkpoint(agent_id, make_conversation(2))
    return checkpoint.model_copy(update={"id": checkpoint_id})


def made_at(seconds: float, agent_id: str = "agent") -> Checkpoint:
    then = NOON + timedelta(seconds=seconds)
    return named(make_checkpoint(agent_id, created_at=then).id, agent_id)


def save_all(store: SqliteCheckpointStore, *checkpoints: Checkpoint) -> None:
    for checkpoint in checkpoints:
        store.save(checkpoint)


def indexed(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT id FROM ckpt_saves WHERE indexed").fetchall()
    connection.close()
    return {name for (name,) in rows}


def test_ids_in_time_order_are_not_indexed(store: SqliteCheckpointStore, path: Path) -> None:
    save_all(store, *(made_at(second) for second in range(5)), made_at(2, "other"))
    assert indexed(path) == set()


def test_foreign_and_out_of_order_ids_are_indexed(store: SqliteCheckpointStore, path: Path) -> None:
    early, late, foreign = made_at(0), made_at(9), named("zzz")
    save_all(store, late, early, foreign, made_at(10))
    assert indexed(path) == {early.id, foreign.id}


def test_ids_need_no_index_again_once_a_clock_set_back_has_caught_up(
    store: SqliteCheckpointStore, path: Path
) -> None:
    back = [made_at(5), made_at(6)]
    save_all(store, made_at(9), *back, made_at(10), made_at(11))
    assert indexed(path) == {checkpoint.id for checkpoint in back}


@pytest.mark.parametrize("seconds", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_every_id_is_found_and_unique_in_whatever_order_they_were_saved(
    store: SqliteCheckpointStore, seconds: tuple[int, ...]
) -> None:
    checkpoints = [*(made_at(second) for second in seconds), named("mine"), named("a"), made_at(8)]
    save_all(store, *checkpoints)
    for checkpoint in checkpoints:
        assert store.load(checkpoint.id) == checkpoint
        store.save(checkpoint)  # a second time, without effect
        with pytest.raises(AlreadyExists):
            store.save(checkpoint.model_copy(update={"iteration": 99}))
    assert store.list("agent") == checkpoints[::-1]


def test_an_id_belongs_to_one_agent(store: SqliteCheckpointStore) -> None:
    own, foreign = made_at(1), named("mine")
    save_all(store, own, foreign)
    for checkpoint in own, foreign:
        with pytest.raises(AlreadyExists):
            store.save(named(checkpoint.id, "other"))


def test_an_id_is_free_again_after_its_checkpoint_was_removed(store: SqliteCheckpointStore) -> None:
    checkpoints = [made_at(2), made_at(1), named("mine"), made_at(3)]
    save_all(store, *checkpoints)
    removed = [checkpoint.id for checkpoint in checkpoints[:3]]
    assert store.remove("agent", [*removed, removed[0], "not there"]) == 3
    assert [store.load(name) for name in removed] == [None, None, None]
    save_all(store, *checkpoints[:3])
    assert store.list("agent") == [*checkpoints[2::-1], checkpoints[3]]


def test_a_rewritten_agent_keeps_its_ids(store: SqliteCheckpointStore, path: Path) -> None:
    checkpoints = [made_at(1), made_at(2)]
    save_all(store, *checkpoints)
    store.rewrite("agent", lambda contents: AgentContents(contents.checkpoints, [], []))
    save_all(store, *checkpoints, made_at(3), made_at(4))
    assert len(store.list("agent")) == 4
    assert indexed(path) == {checkpoint.id for checkpoint in checkpoints}
