"""list, show and diff, as text and as JSON."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.cells import cell_len

from celery_ckpt import CheckpointStore, Conversation, Message, Usage
from celery_ckpt.cli.commands.show import PARTS
from celery_ckpt.records import CurrentCall, RunStatus
from celery_ckpt.runtime.process.owner import this_process
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_run
from tests.support.cli import Commands, add_agent, commands_for


def test_list_has_a_row_for_each_agent_latest_first(any_store: CheckpointStore) -> None:
    add_agent(any_store, "first")
    add_agent(any_store, "second", iterations=5, status=RunStatus.SUCCEEDED, error=None)
    any_store.save(make_checkpoint("third", iteration=7))
    commands = commands_for(any_store)

    titles, *rows = (line.split() for line in commands("list").stdout.splitlines())

    assert titles[:5] == ["AGENT", "STATUS", "ITERATION", "KEPT", "ATTEMPTS"]
    assert [row[:4] for row in rows] == [
        ["third", "idle", "7", "1"],
        ["second", "succeeded", "5", "5"],
        ["first", "failed", "3", "3"],
    ]
    assert rows[2][-2:] == ["no", "model"]
    found = json.loads(commands("list", "--json").stdout)
    assert [(one["agent_id"], one["checkpoints"]) for one in found] == [
        ("third", 1),
        ("second", 5),
        ("first", 3),
    ]


def test_list_and_show_print_usage(any_store: CheckpointStore) -> None:
    used = Usage.of("gpt-5", input_tokens=12_000, output_tokens=345, cached_tokens=7, cost=0.25)
    add_agent(any_store, "spender", usage=used)
    add_agent(any_store, "miser")
    commands = commands_for(any_store)

    titles, *rows = commands("list").stdout.splitlines()
    assert titles.split()[5:7] == ["TOKENS", "COST"]
    cells = {row.split()[0]: row.split() for row in rows}
    assert cells["spender"][5:7] == ["12,345", "0.2500"]
    assert "12,345" not in cells["miser"]
    shown = commands("show", "spender").stdout
    assert "12,000 tokens in, 345 out, 7 cached, cost 0.2500 (gpt-5)" in shown
    expected = {"input_tokens": 12_000, "output_tokens": 345, "cached_tokens": 7, "cost": 0.25}
    whole = {**expected, "by_model": {"gpt-5": expected}}
    [one] = [x for x in json.loads(commands("list", "--json").stdout) if x["agent_id"] == "spender"]
    assert one["usage"] == whole
    shown = json.loads(commands("show", "spender", "--json").stdout)
    assert shown["agent"]["usage"] == shown["runs"][0]["usage"] == whole


def test_an_agent_that_never_ran_is_idle_everywhere(commands: Commands) -> None:
    commands.store.save(make_checkpoint("new"))
    assert commands("list").stdout.splitlines()[1].split()[:2] == ["new", "idle"]
    assert "status     idle" in commands("show", "new").stdout.splitlines()


def test_wide_names_do_not_shift_the_columns_behind_them(commands: Commands) -> None:
    for name in ("漢字の名前", "a name of 15 ..."):
        commands.store.save(make_checkpoint(name, iteration=7))
    titles, *rows = commands("list").stdout.splitlines()
    assert {cell_len(row[: row.index(" idle")]) for row in rows} == {titles.index(" STATUS")}


def test_list_can_be_limited_to_a_status(commands: Commands) -> None:
    add_agent(commands.store, "bad")
    add_agent(commands.store, "good", status=RunStatus.SUCCEEDED)
    [_, row] = commands("list", "--status", "failed").stdout.splitlines()
    assert row.startswith("bad ")
    assert commands("list", "--status", "running").stdout == "No agent is running.\n"
    assert json.loads(commands("list", "--status", "running", "--json").stdout) == []
    assert "'failed'" in commands("list", "--status", "lost", code=2).stderr


def test_list_can_be_limited_to_agents_that_never_had_a_run(commands: Commands) -> None:
    add_agent(commands.store, "bad")
    assert commands("list", "--status", "idle").stdout == "No agent is idle.\n"
    commands.store.save(make_checkpoint("new"))
    [_, row] = commands("list", "--status", "idle").stdout.splitlines()
    assert row.startswith("new ")


def test_list_can_be_limited_to_a_task_a_prefix_and_a_number(commands: Commands) -> None:
    add_agent(commands.store, "user-1", task="proj.ask")
    add_agent(commands.store, "user-2", task="proj.tell")
    add_agent(commands.store, "job-1", task="proj.ask")

    def listed(*options: str) -> list[str]:
        found = json.loads(commands("list", *options, "--json").stdout)
        assert len(commands("list", *options).stdout.splitlines()) == len(found) + 1
        return [one["agent_id"] for one in found]

    assert listed("--task", "proj.ask") == ["job-1", "user-1"]
    assert listed("--prefix", "user-") == ["user-2", "user-1"]
    assert listed("-n", "2") == ["job-1", "user-2"]
    assert listed("--last", "9") == ["job-1", "user-2", "user-1"]
    assert listed("--task", "proj.ask", "--prefix", "user-", "--status", "failed") == ["user-1"]
    assert commands("list", "--prefix", "x").stdout == "No agent matches.\n"
    assert commands("list", "--task", "x", "--status", "idle").stdout == "No agent matches.\n"
    assert commands("list", "-n", "0", code=2)


def test_list_with_a_prefix_reads_only_the_matching_agents(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("user-1", "job-1"):
        add_agent(commands.store, name)
    read, outline = list[str](), commands.store.outline
    monkeypatch.setattr(
        commands.store, "outline", lambda agent_id: read.append(agent_id) or outline(agent_id)
    )
    commands("list", "--prefix", "user-")
    assert read == ["user-1"]


def test_list_shows_the_agent_that_changed_last_first(commands: Commands) -> None:
    for name in ("first", "second"):
        add_agent(commands.store, name)
    commands.store.add_run(make_run("first"))
    found = json.loads(commands("list", "--json").stdout)
    assert [one["agent_id"] for one in found] == ["first", "second"]
    assert found[0]["changed_at"] > found[1]["changed_at"]


def test_a_long_list_is_one_table(commands: Commands) -> None:
    for number in range(1101):
        commands.store.add_run(make_run(f"agent-{number}", "run"))
    titles, *rows = commands("list").stdout.splitlines()
    assert titles.startswith("AGENT")
    assert [row.split()[0] for row in rows] == [f"agent-{number}" for number in range(1100, -1, -1)]
    assert len(json.loads(commands("list", "--json").stdout)) == 1101


def test_an_unreadable_agent_is_reported_once(tmp_path: Path) -> None:
    commands = commands_for(f"sqlite:///{tmp_path}/store.db")
    for number in range(150):
        task = "common" if number % 50 else "rare"
        commands.store.add_run(make_run(f"agent-{number}", "run", task=task))
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("UPDATE ckpt_runs SET outline = x'00' WHERE agent = 31")
    listed = commands("list", "--task", "common", "--json", code=65)
    assert len(json.loads(listed.stdout)) == 146
    assert listed.stderr.count("agent-30:") == 1


def test_list_says_that_a_store_is_empty(commands: Commands) -> None:
    assert commands("list").stdout == "This store has no agents yet.\n"


def test_list_does_not_call_an_unreadable_store_empty(tmp_path: Path) -> None:
    commands = commands_for(f"sqlite:///{tmp_path}/store.db")
    add_agent(commands.store)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("UPDATE ckpt_runs SET outline = ?", [b"nonsense"])
    for arguments in (["list"], ["list", "--status", "failed"]):
        listed = commands(*arguments, code=65)
        assert listed.stdout == ""
        assert listed.stderr.startswith("Error: user-42: ")
    assert json.loads(commands("list", "--json", code=65).stdout) == []


def test_an_agent_with_only_a_lease_is_skipped(commands: Commands) -> None:
    commands.store.acquire("only a lease", "owner", 30)
    add_agent(commands.store, "whole")
    assert [line.split()[0] for line in commands("list").stdout.splitlines()] == ["AGENT", "whole"]


def test_show_prints_everything(any_store: CheckpointStore) -> None:
    ids = add_agent(any_store)
    shown = commands_for(any_store)("show", "user-42").stdout
    assert "status     failed\n" in shown
    assert "attempts   2 (retries: 0)\n" in shown
    assert "   2 user         Why is the sky blue?\n" in shown
    assert '   7 assistant    → look_up(what="wave 3")\n' in shown
    assert "   8 tool         ← result 3\n" in shown
    assert 'state      {"asked": 3}\n' in shown
    lines = shown.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(ids[0][:17])] == ids[::-1]
    assert "Runs: 1" in lines
    assert lines[-1].split()[:3] == ["3", "look_up", "3:call:c3"]


def test_show_prints_json_without_the_message_of_the_task(commands: Commands) -> None:
    ids = add_agent(commands.store, envelope={"headers": {"secret": 1}})
    shown = json.loads(commands("show", "user-42", "--json").stdout)
    assert (shown["agent"]["agent_id"], shown["agent"]["checkpoints"]) == ("user-42", 3)
    assert [one["id"] for one in shown["checkpoints"]] == ids[::-1]
    assert [one["key"] for one in shown["steps"]] == ["1:call:c1", "2:call:c2", "3:call:c3"]
    assert shown["runs"][0]["attempts"] == 2
    assert "envelope" not in shown["runs"][0]
    latest = commands.store.load_latest("user-42")
    assert latest is not None
    assert shown["checkpoint"]["conversation"]["messages"] == [m.to_dict() for m in latest.conversation]


def test_show_prints_the_result_of_a_run_that_succeeded(commands: Commands) -> None:
    result = {"answer": "blue", "why": "x" * 600}
    add_agent(commands.store, status=RunStatus.SUCCEEDED, error=None, result=result)
    shown = commands("show", "user-42").stdout
    [fact] = [line for line in shown.splitlines() if line.startswith("result ")]
    assert fact.startswith('result     {"answer": "blue", "why": "xxx')
    assert len(fact) < 520
    [titles, row] = commands("show", "user-42", "--part", "runs").stdout.splitlines()[1:]
    assert titles.endswith(" OUTCOME")
    assert ' {"answer": "blue", "why": "xxx' in row


def test_show_omits_a_result_that_is_none(commands: Commands) -> None:
    add_agent(commands.store, status=RunStatus.SUCCEEDED, error=None)
    assert "result " not in commands("show", "user-42", "-n", "0").stdout


def test_the_last_checkpoint_of_a_run_that_succeeded_is_marked_end(
    commands: Commands,
) -> None:
    add_agent(commands.store, iterations=1, status=RunStatus.SUCCEEDED)
    for state in ({"by": "hand"}, {"at": "the end"}):
        commands.store.save(make_checkpoint("user-42", state=state, run_id="run-of-user-42"))
    commands.store.save(make_checkpoint("user-42", run_id="of another run"))
    _, titles, *rows = commands("show", "user-42", "--part", "checkpoints").stdout.splitlines()
    after = [row[titles.index("AFTER") : titles.index("TAKEN")].strip() for row in rows]
    assert after == ["", "end", "", "iteration"]


def test_show_names_the_worker_by_its_host_and_pid(commands: Commands) -> None:
    add_agent(commands.store)
    commands.store.acquire("user-42", this_process(), 60)
    worker = f"worker     {socket.gethostname()}, pid {os.getpid()}"
    assert worker in commands("show", "user-42").stdout.splitlines()
    assert json.loads(commands("show", "user-42", "--json").stdout)["agent"]["owner"] == this_process()


def test_show_names_the_call_in_progress(commands: Commands) -> None:
    start = commands.store.start_run(make_run("busy", "r"), "host:1:abc", 60)
    assert start.lease is not None
    began_at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    call = CurrentCall(kind="llm", name="call_model \x1b", began_at=began_at)
    commands.store.renew(start.lease, 60, call=call)
    assert r"llm call_model \x1b" in commands("show", "busy").stdout
    [row] = json.loads(commands("list", "--json").stdout)
    assert row["call"]["name"] == "call_model \x1b"
    commands.store.release(start.lease)
    assert "call_model" not in commands("show", "busy").stdout


def test_show_names_a_tool_that_holds_the_lease(commands: Commands) -> None:
    add_agent(commands.store)
    commands.store.acquire("user-42", "import", 60)
    assert "worker     import" in commands("show", "user-42").stdout.splitlines()


def test_show_lists_the_newest_run_and_checkpoint_first(commands: Commands) -> None:
    ids = add_agent(commands.store)
    for number in range(2, 5):
        commands.store.add_run(make_run("user-42", f"run {number}"))
    shown = commands("show", "user-42", "--part", "checkpoints", "--part", "runs", "-n", "2").stdout
    assert "Checkpoints: 3 (newest 2 shown)\n" in shown
    assert "Runs: 4 (newest 2 shown)\n" in shown
    listed = [line.split("  ")[0] for line in shown.splitlines()]
    assert [name for name in listed if name in ids] == [ids[2], ids[1]]
    assert [name for name in listed if name.startswith("run ")] == ["run 4", "run 3"]
    runs = json.loads(commands("show", "user-42", "--part", "runs", "--json").stdout)["runs"]
    assert [run["run_id"] for run in runs] == ["run-of-user-42", "run 2", "run 3", "run 4"]


def test_a_single_part_does_not_begin_with_an_empty_line(commands: Commands) -> None:
    add_agent(commands.store)
    for part in PARTS:
        assert commands("show", "user-42", "--part", part).stdout.splitlines()[0].strip()
    both = commands("show", "user-42", "--part", "runs", "--part", "steps").stdout
    assert both.count("\n\n") == 1


def test_show_can_be_limited_to_parts_and_to_an_older_checkpoint(commands: Commands) -> None:
    first, *_ = add_agent(commands.store)
    shown = commands("show", "user-42", "--part", "conversation", "--checkpoint", first).stdout
    assert "Conversation: 4 messages" in shown
    assert "Runs" not in shown
    assert list(json.loads(commands("show", "user-42", "--part", "runs", "--json").stdout)) == [
        "agent",
        "runs",
    ]


def test_a_checkpoint_of_another_agent_is_refused(commands: Commands) -> None:
    add_agent(commands.store, "one")
    other, *_ = add_agent(commands.store, "other")
    assert "agent 'one'" in commands.fails("show", "one", "--checkpoint", other, code=66)


def test_a_long_conversation_is_shown_by_its_start_and_end(commands: Commands) -> None:
    conversation = make_conversation(98)
    conversation.append(Message.assistant("x" * 5_000 + " the end"))
    commands.store.save(make_checkpoint("long", conversation))
    shown = commands("show", "long", "-n", "3").stdout
    assert "   1 system       You are a test.\n     … 96 messages omitted" in shown
    assert [line.split()[0] for line in shown.splitlines() if "message " in line] == ["98", "99"]
    assert "characters omitted …\n" in shown
    assert shown.count("x" * 100) == 9
    assert "the end" in shown
    everything = commands("show", "long", "--all", "--full").stdout
    assert "omitted" not in everything
    assert "x" * 5_000 in everything
    assert "\n  50 user " in everything


def test_an_agent_without_checkpoints_can_be_shown(commands: Commands) -> None:
    add_agent(commands.store, "new", iterations=0, status=RunStatus.QUEUED, delivered=False, attempts=0)
    shown = commands("show", "new").stdout
    assert "status     queued" in shown
    assert "Conversation: no checkpoint yet" in shown
    assert json.loads(commands("show", "new", "--json").stdout)["checkpoint"] is None


def test_show_and_diff_print_messages_of_pydantic_ai(commands: Commands) -> None:
    texts = (Path(__file__).parents[1] / "support/provider_messages.json").read_text(encoding="utf-8")
    own = [shape for name, shape in json.loads(texts).items() if name.startswith("pydantic-ai")]
    first, second = (make_checkpoint("agent", Conversation(messages=own[:n])) for n in (2, 3))
    for checkpoint in (first, second):
        commands.store.save(checkpoint)

    shown = commands("show", "agent", "--part", "conversation").stdout
    assert "   1 user         Be brief.\n" in shown
    assert "   2 assistant    thinking: Hm.\n" in shown
    assert '→ weather(city="Zürich", n=1.0)\n' in shown
    assert '   3 tool         ← {"c":12.5}\n' in shown
    assert "waiting for results" not in shown
    assert "+   3 tool" in commands("diff", first.id, second.id, code=1).stdout


def test_show_names_tool_calls_without_results(commands: Commands) -> None:
    conversation = make_conversation(1)
    call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    conversation.append(Message.assistant(None, tool_calls=[call]))
    commands.store.save(make_checkpoint("waiting", conversation))
    assert "waiting for results of: pay" in commands("show", "waiting").stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_diff_prints_the_changes_and_exits_like_diff(commands: Commands, as_json: bool) -> None:
    first, _, third = add_agent(commands.store)
    options = ["--json"] if as_json else []
    same = commands("diff", first, first, *options, code=0).stdout
    changed = commands("diff", first, third, *options, code=1).stdout
    if as_json:
        assert json.loads(same) == {
            "differ": False,
            "shared_messages": 4,
            "changes": [],
            "messages": [],
        }
        found = json.loads(changed)
        assert {"path": "state.asked", "old": 1, "new": 3} in found["changes"]
        [edit] = found["messages"]
        assert (edit["old_at"], edit["new_at"], edit["removed"], len(edit["added"])) == (4, 4, [], 4)
    else:
        assert "4 messages in common" in same
        assert "~ state.asked: 1 → 3\n" in changed
        assert '~ metadata.cost: "0.01" → "0.03"\n' in changed
        assert '+   5 assistant   → look_up(what="wave 2")\n' in changed
