"""What a deletion leaves in the stores that keep files: markers of runs, and no directories."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from celery_ckpt import FileCheckpointStore, SqliteCheckpointStore
from celery_ckpt.errors import LeaseLost, RunNotFound, StoreDamaged
from celery_ckpt.records import Lease
from celery_ckpt.testing import FakeClock, make_checkpoint, make_run, make_step

HOUR = 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestFileStore:
    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> FileCheckpointStore:
        return FileCheckpointStore(tmp_path, clock=clock)

    @pytest.fixture
    def lost(self, store: FileCheckpointStore) -> Lease:
        """The lease of an agent that was deleted."""
        lease = store.start_run(make_run("agent", "run"), "me", HOUR).lease
        assert lease is not None
        store.delete("agent")
        return lease

    @pytest.mark.parametrize(
        "write",
        [
            lambda store, lease: store.save(make_checkpoint("agent"), lease),
            lambda store, lease: store.save(make_checkpoint("agent"), run=make_run("agent", "run")),
            lambda store, lease: store.record_step(make_step("agent", "run"), lease),
        ],
        ids=["save", "save with a run", "record_step"],
    )
    def test_a_refused_write_leaves_no_directory(
        self,
        write: Callable[[FileCheckpointStore, Lease], None],
        store: FileCheckpointStore,
        lost: Lease,
        tmp_path: Path,
    ) -> None:
        with pytest.raises((LeaseLost, RunNotFound)):
            write(store, lost)

        assert list(tmp_path.glob("agents/*/*")) == []
        assert not (tmp_path / "trash").exists()

    def test_the_start_of_a_deleted_run_leaves_no_directory(
        self, store: FileCheckpointStore, lost: Lease, tmp_path: Path
    ) -> None:
        assert store.start_run(make_run("agent", "run"), "me", HOUR, recorded=True).is_deleted

        assert list(tmp_path.glob("agents/*/*")) == []

    @pytest.mark.usefixtures("lost")
    def test_a_refused_write_does_not_remove_what_another_process_writes(
        self, store: FileCheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other, saved = FileCheckpointStore(tmp_path), make_checkpoint("agent")
        make = store._directory._make

        def make_and_be_overtaken(agent_id: str) -> bool:
            is_new = make(agent_id)
            other.save(saved)
            return is_new

        monkeypatch.setattr(store._directory, "_make", make_and_be_overtaken)
        with pytest.raises(RunNotFound):
            store.save(make_checkpoint("agent"), run=make_run("agent", "run"))

        assert store.list("agent") == [saved]

    def test_a_marker_is_a_file_named_by_a_digest_of_the_run(
        self, store: FileCheckpointStore, tmp_path: Path
    ) -> None:
        store.add_run(make_run("a secret name", "run", envelope={"text": "secret"}))
        store.delete("a secret name")

        [path] = (tmp_path / "deleted").iterdir()
        assert path.name == hashlib.sha256(b"run").hexdigest()[:32]
        assert b"secret" not in path.read_bytes()

    @pytest.mark.parametrize("by", ["a deletion", "doctor"])
    def test_expired_markers_are_removed(
        self, store: FileCheckpointStore, clock: FakeClock, tmp_path: Path, by: str
    ) -> None:
        for name in ("first", "second"):
            store.add_run(make_run(name, name))
            store.delete(name, remember=HOUR)
            clock.advance(HOUR / 2 + 1)

        if by == "doctor":
            assert list(store.findings()) == []
            assert len(list((tmp_path / "deleted").iterdir())) == 2, "without repair nothing changes"
            assert list(store.findings(repair=True)) == []
        else:
            store.save(make_checkpoint("third"))
            store.delete("third")

        assert len(list((tmp_path / "deleted").iterdir())) == 1
        assert store.was_deleted("second")

    def test_a_damaged_marker_is_an_error(self, store: FileCheckpointStore, tmp_path: Path) -> None:
        store.add_run(make_run("agent", "run"))
        store.delete("agent")
        [path] = (tmp_path / "deleted").iterdir()
        path.write_bytes(b"{")

        with pytest.raises(StoreDamaged):
            store.was_deleted("run")
        store.save(make_checkpoint("other"))
        assert store.delete("other") == 1, "the other agents can be deleted"

    def test_an_agent_with_damaged_runs_can_be_deleted(
        self, store: FileCheckpointStore, tmp_path: Path
    ) -> None:
        store.add_run(make_run("agent", "run"))
        [runs] = tmp_path.glob("agents/*/*/runs")
        runs.write_bytes(b"damaged\n")

        assert store.delete("agent") == 0
        assert list(store.agents()) == []


class TestSqliteStore:
    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> Iterator[SqliteCheckpointStore]:
        with SqliteCheckpointStore.open(tmp_path / "store.db", clock=clock) as store:
            yield store

    @pytest.mark.parametrize("by", ["a deletion", "doctor"])
    def test_expired_markers_are_removed(
        self, store: SqliteCheckpointStore, clock: FakeClock, tmp_path: Path, by: str
    ) -> None:
        for name in ("first", "second"):
            store.add_run(make_run(name, name))
            store.delete(name, remember=HOUR)
            clock.advance(HOUR / 2 + 1)

        if by == "doctor":
            assert list(store.findings(repair=True)) == []
        else:
            store.save(make_checkpoint("third"))
            store.delete("third")

        with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            rows = connection.execute("SELECT digest FROM ckpt_deleted").fetchall()
        assert rows == [(hashlib.sha256(b"second").hexdigest()[:32],)]

    def test_a_run_whose_record_is_damaged_is_remembered(
        self, store: SqliteCheckpointStore, tmp_path: Path
    ) -> None:
        store.add_run(make_run("agent", "run"))
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            connection.execute("UPDATE ckpt_runs SET outline = x'00'")
            connection.commit()

        store.delete("agent")

        assert store.was_deleted("run")
