"""pin, prune and doctor: what is kept, and whether it is kept well."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from celery_ckpt import CheckpointStore, open_store
from celery_ckpt.testing import make_checkpoint
from celery_ckpt.testing.contract.fixtures import settled
from tests.support.cli import Commands, commands_for, tell


def kept(store: CheckpointStore, agent_id: str = "user-42") -> list[str]:
    return [info.id for info in store.history(agent_id)][::-1]


def test_a_pin_is_shown_and_taken_away(commands: Commands) -> None:
    _, second, _ = tell(commands.store)
    assert commands("pin", second, "--label", "good").stdout == f"{second}: pinned as good.\n"
    assert " good " in commands("show", "user-42", "--part", "checkpoints").stdout
    assert commands("pin", second, "--off").stdout == f"{second}: no longer pinned.\n"
    assert commands("pin", second, "--off").stdout == f"{second}: was not pinned.\n"
    assert json.loads(commands("pin", second, "--json").stdout) == {"id": second, "pin": "pinned"}


def test_a_label_that_nobody_can_store_is_wrong_usage(commands: Commands) -> None:
    _, second, _ = tell(commands.store)
    assert "512" in commands.fails("pin", second, "--label", "", code=2)


def test_the_agents_named_keep_what_is_asked_for_and_what_is_pinned(commands: Commands) -> None:
    first, _, third = tell(commands.store)
    commands("pin", first)
    assert commands("prune", "user-42", "--keep", "1").stdout == "user-42: deleted 1 checkpoint.\n"
    assert kept(commands.store) == [first, third]


def test_all_agents_are_pruned_by_their_limits_and_a_dry_run_only_says_so(
    any_store: CheckpointStore,
) -> None:
    tell(any_store, "long", iterations=6)
    tell(any_store, "short", iterations=1)
    commands = commands_for(any_store, ckpt_keep=2)

    dry = commands("prune", "--dry-run").stdout
    assert len(kept(any_store, "long")) == 6
    [titles, row, said] = dry.splitlines()
    assert (titles.split()[:2], row.split()[:2]) == (["AGENT", "CHECKPOINTS"], ["long", "4"])
    summary = (
        r"4 checkpoints, 0 old runs and 0 whole agents \(1 agent affected, \d+ B\)\. Checked 2 agents\."
    )
    assert re.fullmatch(f"Would delete {summary}", said)
    told = json.loads(commands("prune", "--dry-run", "--json").stdout)
    assert (told["checkpoints"], told["dry_run"], told["agents"]) == (4, True, 2)
    assert [(one["agent_id"], one["checkpoints"]) for one in told["pruned_agents"]] == [("long", 4)]

    assert re.fullmatch(f"Deleted {summary}", commands("prune").stdout.splitlines()[-1])
    assert (len(kept(any_store, "long")), len(kept(any_store, "short"))) == (2, 1)


def test_old_runs_are_counted(any_store: CheckpointStore) -> None:
    tell(any_store, "user-7", iterations=1)
    for run_id in ("old", "older", "last"):
        settled(any_store, "user-7", run_id, datetime(2026, 1, 1, tzinfo=UTC))
    commands = commands_for(any_store)

    [titles, row, said] = commands("prune", "--dry-run").stdout.splitlines()
    assert (titles.split()[2], row.split()[:3]) == ("RUNS", ["user-7", "0", "2"])
    assert "2 old runs" in said
    told = json.loads(commands("prune", "--json").stdout)
    assert (told["runs"], told["pruned_agents"][0]["runs"]) == (2, 2)
    assert any_store.runs("user-7")[-1].run_id == "last"


@pytest.mark.parametrize(
    "arguments",
    [["agent"], ["--keep", "3"], ["agent", "--keep", "1", "--dry-run"], ["x", "--keep", "-1"]],
)
def test_half_an_order_to_prune_is_wrong_usage(commands: Commands, arguments: list[str]) -> None:
    assert "Error: " in commands("prune", *arguments, code=2).stderr


def test_a_store_that_can_lose_work_is_named_by_the_doctor(commands: Commands) -> None:
    told = commands("doctor", code=1).stdout
    assert told.startswith("risk ")
    [finding, *_] = json.loads(commands("doctor", "--json", code=1).stdout)
    assert (finding["kind"], finding["repaired"]) == ("risk", False)


def test_a_store_that_is_well_is_said_to_be_well(tmp_path: Path) -> None:
    with open_store(f"file://{tmp_path}/files") as store:
        tell(store)
        commands = commands_for(store)
        assert commands("doctor").stdout == "No problems found.\n"
        assert json.loads(commands("doctor", "--json").stdout) == []


def test_what_a_crash_left_behind_is_named_and_then_removed(tmp_path: Path) -> None:
    with open_store(f"file://{tmp_path}/files") as store:
        tell(store)
        store.schedule("an agent that was deleted", 600)
        commands = commands_for(store)
        told = commands("doctor", code=1).stdout
        assert "an agent that was deleted" in told
        assert told.endswith("1 problem can be repaired: celery ckpt doctor --repair\n")
        assert commands("doctor", "--repair").stdout.endswith(" Repaired.\n")
        assert commands("doctor").stdout == "No problems found.\n"


def test_what_is_damaged_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(f"sqlite:///{path}") as store:
        tell(store)
        damaged = make_checkpoint("spoilt")
        store.save(damaged)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE ckpt_saves SET messages = x'7b7d' WHERE id = ?", [damaged.id])
        commands = commands_for(store)
        for arguments in (["doctor"], ["doctor", "--repair"]):
            told = commands(*arguments, code=1).stdout
            assert re.search(f"damaged +spoilt: .*{damaged.id}", told)
