"""A damaged event log keeps no run from working, and doctor reports it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from celery_ckpt import CheckpointStore, FileCheckpointStore, open_store
from celery_ckpt.stores.findings import damage_in
from tests.support.logged_work import CALL, work_with_log


def doctored(store: CheckpointStore) -> list[str]:
    return [finding.what for finding in damage_in(store) if "event log" in finding.what]


# -- files -------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda data: data[: len(data) - 20],
    "a byte changed": lambda data: data.replace(b"ask", b"asq", 1),
    "garbage": lambda data: b"\xff\x00 garbage\n" * 3,
    "no line break": lambda data: b"x" * 20_000,
    "empty": lambda data: b"",
}


@pytest.fixture
def files(tmp_path: Path) -> CheckpointStore:
    store = FileCheckpointStore(tmp_path / "store")
    work_with_log(store, "first")
    return store


@pytest.mark.parametrize("how", CHANGES)
def test_a_damaged_file_keeps_no_run_from_working(
    files: CheckpointStore, tmp_path: Path, how: str
) -> None:
    [path] = tmp_path.glob("store/agents/*/*/events")
    path.write_bytes(CHANGES[how](path.read_bytes()))
    found = doctored(files)
    if how in ("a byte changed", "garbage"):
        count = 3 if how == "garbage" else 1
        assert found == [f"{count} entries of its event log cannot be read; its runs are not affected"]
    work_with_log(files, "second")
    assert files.event_log("agent")[-1].data == {"run_id": "second", "status": "succeeded"}


def test_a_torn_file_loses_only_its_last_entry(files: CheckpointStore, tmp_path: Path) -> None:
    before = files.event_log("agent")
    [path] = tmp_path.glob("store/agents/*/*/events")
    path.write_bytes(path.read_bytes()[:-5])
    assert files.event_log("agent") == before[:-1]
    files.note("agent", [CALL])
    assert [entry.cursor for entry in files.event_log("agent")][-2:] == [
        before[-2].cursor,
        before[-1].cursor,
    ]


def test_a_file_that_cannot_be_written_keeps_no_run_from_working(
    files: CheckpointStore, tmp_path: Path
) -> None:
    [path] = tmp_path.glob("store/agents/*/*/events")
    path.unlink()
    path.mkdir()
    assert len(doctored(files)) == 1
    work_with_log(files, "second")


# -- SQLite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["x''", "x'00ff'", "CAST('[1]' AS BLOB)"])
def test_a_damaged_row_keeps_no_run_from_working(tmp_path: Path, entry: str) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        work_with_log(store, "first")
        with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
            database.execute(f"UPDATE ckpt_events SET entry = {entry} WHERE number & 255 IN (2, 3)")
        assert doctored(store) == [
            "2 entries of its event log cannot be read; its runs are not affected"
        ]
        work_with_log(store, "second")
