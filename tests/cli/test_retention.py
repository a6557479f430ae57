"""pin, prune and doctor."""

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
from tests.support.cli import Commands, add_agent, commands_for


def kept(store: CheckpointStore, agent_id: str = "user-42") -> list[str]:
    return [info.id for info in store.history(agent_id)][::-1]


def test_a_pin_is_shown_and_removed(commands: Commands) -> None:
    _, second, _ = add_agent(commands.store)
    assert commands("pin", second, "--label", "good").stdout == f"{second}: pinned as good.\n"
    assert " good " in commands("show", "user-42", "--part", "checkpoints").stdout
    assert commands("pin", second, "--off").stdout == f"{second}: no longer pinned.\n"
    assert commands("pin", second, "--off").stdout == f"{second}: was not pinned.\n"
    assert json.loads(commands("pin", second, "--json").stdout) == {"id": second, "pin": "pinned"}


def test_an_invalid_label_is_wrong_usage(commands: Commands) -> None:
    _, second, _ = add_agent(commands.store)
    assert "512" in commands.fails("pin", second, "--label", "", code=2)


def test_named_agents_keep_the_newest_and_the_pinned_checkpoints(commands: Commands) -> None:
    first, _, third = add_agent(commands.store)
    commands("pin", first)
    assert commands("prune", "user-42", "--keep", "1").stdout == "user-42: deleted 1 checkpoint.\n"
    assert kept(commands.store) == [first, third]


def test_prune_applies_limits_to_all_agents_and_a_dry_run_only_reports(
    any_store: CheckpointStore,
) -> None:
    add_agent(any_store, "long", iterations=6)
    add_agent(any_store, "short", iterations=1)
    commands = commands_for(any_store, ckpt_keep=2)

    dry = commands("prune", "--dry-run").stdout
    assert len(kept(any_store, "long")) == 6
    [titles, row, said] = dry.splitlines()
    assert (titles.split()[:2], row.split()[:2]) == (["AGENT", "CHECKPOINTS"], ["long", "4"])
    summary = (
        r"4 checkpoints, 0 old runs and 0 whole agents \(1 agent affected, \d+ B\)\. Checked 2 agents\."
    )
    assert re.fullmatch(f"Would delete {summary}", said)
    output = json.loads(commands("prune", "--dry-run", "--json").stdout)
    assert (output["checkpoints"], output["dry_run"], output["agents"]) == (4, True, 2)
    assert [(one["agent_id"], one["checkpoints"]) for one in output["pruned_agents"]] == [("long", 4)]

    assert re.fullmatch(f"Deleted {summary}", commands("prune").stdout.splitlines()[-1])
    assert (len(kept(any_store, "long")), len(kept(any_store, "short"))) == (2, 1)


def test_prune_reports_the_number_of_deleted_old_runs(any_store: CheckpointStore) -> None:
    add_agent(any_store, "user-7", iterations=1)
    for run_id in ("old", "older", "last"):
        settled(any_store, "user-7", run_id, datetime(2026, 1, 1, tzinfo=UTC))
    commands = commands_for(any_store)

    [titles, row, said] = commands("prune", "--dry-run").stdout.splitlines()
    assert (titles.split()[2], row.split()[:3]) == ("RUNS", ["user-7", "0", "2"])
    assert "2 old runs" in said
    output = json.loads(commands("prune", "--json").stdout)
    assert (output["runs"], output["pruned_agents"][0]["runs"]) == (2, 2)
    assert any_store.runs("user-7")[-1].run_id == "last"


@pytest.mark.parametrize(
    "arguments",
    [["agent"], ["--keep", "3"], ["agent", "--keep", "1", "--dry-run"], ["x", "--keep", "-1"]],
)
def test_agents_without_keep_or_keep_without_agents_is_wrong_usage(
    commands: Commands, arguments: list[str]
) -> None:
    assert "Error: " in commands("prune", *arguments, code=2).stderr


def test_doctor_reports_a_store_that_can_lose_work(commands: Commands) -> None:
    output = commands("doctor", code=1).stdout
    assert output.startswith("risk ")
    [finding, *_] = json.loads(commands("doctor", "--json", code=1).stdout)
    assert (finding["kind"], finding["repaired"]) == ("risk", False)


def test_doctor_reports_no_problems_for_an_intact_store(tmp_path: Path) -> None:
    with open_store(f"file://{tmp_path}/files") as store:
        add_agent(store)
        commands = commands_for(store)
        assert commands("doctor").stdout == "No problems found.\n"
        assert json.loads(commands("doctor", "--json").stdout) == []


def test_doctor_reports_and_repairs_leftovers_of_a_crash(tmp_path: Path) -> None:
    with open_store(f"file://{tmp_path}/files") as store:
        add_agent(store)
        store.schedule("an agent that was deleted", 600)
        commands = commands_for(store)
        output = commands("doctor", code=1).stdout
        assert "an agent that was deleted" in output
        assert output.endswith("1 problem can be repaired: celery ckpt doctor --repair\n")
        assert commands("doctor", "--repair").stdout.endswith(" Repaired.\n")
        assert commands("doctor").stdout == "No problems found.\n"


def test_doctor_reports_damage_and_does_not_touch_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(f"sqlite:///{path}") as store:
        add_agent(store)
        damaged = make_checkpoint("spoilt")
        store.save(damaged)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE ckpt_saves SET messages = x'7b7d' WHERE id = ?", [damaged.id])
        commands = commands_for(store)
        for arguments in (["doctor"], ["doctor", "--repair"]):
            output = commands(*arguments, code=1).stdout
            assert re.search(f"damaged +spoilt: .*{damaged.id}", output)
