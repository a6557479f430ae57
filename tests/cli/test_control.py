"""cancel, fork, delete and bench, without a worker."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from celery_ckpt import CheckpointStore, MemoryCheckpointStore
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.testing import Fault, FaultyStore
from tests.support.cli import Commands, add_agent, commands_for


def test_a_run_that_has_ended_is_not_cancelled(commands: Commands) -> None:
    add_agent(commands.store)
    assert commands("cancel", "user-42").stdout == "user-42: no open run to cancel.\n"
    assert json.loads(commands("cancel", "user-42", "--json").stdout) == {
        "agent_id": "user-42",
        "cancelled": False,
    }


def test_an_open_run_is_cancelled(commands: Commands) -> None:
    add_agent(commands.store, status="queued", delivered=False)
    assert commands("cancel", "user-42").stdout == "user-42: cancelled.\n"
    assert commands.store.runs("user-42")[0].status == "cancelled"


def test_a_checkpoint_is_forked_under_an_unused_name(commands: Commands) -> None:
    _, second, _ = add_agent(commands.store)
    assert commands("fork", second, "--as", "branch").stdout == "branch\n"
    line = commands.fails("fork", second, "--as", "branch", code=1)
    assert line == "Error: Agent 'branch' already exists. Choose another name for the fork."
    forked = json.loads(commands("fork", second, "--json").stdout)
    assert forked["forked_from"] == second
    copy = commands.store.load_latest(forked["agent_id"])
    assert copy is not None
    assert copy.iteration == 2


def test_an_agent_without_runs_cannot_be_resumed(commands: Commands) -> None:
    _, second, _ = add_agent(commands.store)
    commands("fork", second, "--as", "branch")
    line = commands.fails("resume", "branch", code=1)
    assert line == "Error: Agent 'branch' has no run to resume. Send a task for it."


def test_a_deleted_agent_is_not_found(commands: Commands) -> None:
    add_agent(commands.store)
    assert json.loads(commands("delete", "user-42", "-y", "--json").stdout)["checkpoints"] == 3
    assert list(commands.store.agents()) == []


def test_an_agent_whose_run_is_damaged_can_be_deleted(tmp_path: Path) -> None:
    commands = commands_for(f"sqlite:///{tmp_path}/store.db")
    add_agent(commands.store, status="queued", delivered=False)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("UPDATE ckpt_runs SET outline = ?", [b"nonsense"])
    assert commands.fails("cancel", "user-42", code=1).endswith("Delete the agent, or that run.")

    assert "user-42: deleted (3 checkpoints)." in commands("delete", "user-42", "-y").stdout

    assert list(commands.store.agents()) == []


def test_bench_leaves_the_store_unchanged(any_store: CheckpointStore) -> None:
    add_agent(any_store)
    commands = commands_for(any_store)
    measured = json.loads(commands("bench", "--rounds", "3", "--json").stdout)
    names = [one["name"] for one in measured["operations"]]
    assert names == ["acquire", "record_step", "save", "load_latest", "release"]
    assert all(0 < one["median_seconds"] <= one["slowest_seconds"] for one in measured["operations"])
    assert commands("bench", "--rounds", "3").stdout.splitlines()[0].split()[0] == "OPERATION"
    assert list(any_store.agents()) == ["user-42"]


def test_a_failed_bench_leaves_nothing_behind() -> None:
    from celery_ckpt.cli.commands.bench import Bench

    store = MemoryCheckpointStore()
    with pytest.raises(StoreUnavailable, match="injected"):
        Bench(FaultyStore(store, Fault(at=3)), 5, 100).run()  # type: ignore[arg-type]
    assert list(store.agents()) == []
