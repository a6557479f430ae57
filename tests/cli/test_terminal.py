"""``celery -A proj ckpt`` as a process: on a terminal, in a pipe, with an unavailable store."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from celery_ckpt import CheckpointStore, Conversation, Message
from celery_ckpt.records import RunStatus
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step
from celery_ckpt.transfer import export_agents
from tests.support.cli import Process, add_agent, commands_for
from tests.support.servers.valkey import free_port
from tests.support.wait import until

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m[bold red]markup[/] :smile: \u202e\r\x08 end"


def plain(text: str) -> str:
    """Return what a terminal shows, without colours. No other escape may be left."""
    shown = ESCAPE.sub("", text)
    assert "\x1b" not in shown
    return shown


def test_the_command_is_found_by_celery(process: Process, process_store: CheckpointStore) -> None:
    add_agent(process_store)
    [titles, row] = process.run("list").stdout.splitlines()
    assert titles.startswith("AGENT ")
    assert row.startswith("user-42 ")


@pytest.mark.parametrize(
    ("redirection", "arguments", "code"),
    [
        (">&-", ["list"], 0),
        (">&-", ["export"], 0),
        ("<&-", ["delete", "user-42"], 2),
        ("<&- >&- 2>&-", ["show", "unknown"], 66),
    ],
    ids=str,
)
def test_a_closed_stream_is_treated_as_dev_null(
    process: Process,
    process_store: CheckpointStore,
    redirection: str,
    arguments: list[str],
    code: int,
) -> None:
    add_agent(process_store)
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *process.command(*arguments)]
    ended = subprocess.run(shell, env=process.environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_terminal_gets_tables_and_colours(process: Process, process_store: CheckpointStore) -> None:
    add_agent(process_store)
    code, shown = process.on_a_terminal("list")
    assert code == 0
    assert "\x1b[31mfailed" in shown
    title, line, row = plain(shown).splitlines()[:3]
    assert title.startswith("agent ")
    assert set(line) == {"─"}
    assert row.startswith("user-42 ")


def test_a_table_fits_the_width_of_the_terminal(
    process: Process, process_store: CheckpointStore
) -> None:
    add_agent(process_store, "a-rather-long-name-of-an-agent-that-users-may-want-to-copy")
    code, shown = process.on_a_terminal("list", columns=60)
    assert code == 0
    lines = plain(shown).splitlines()
    assert max(map(len, lines)) <= 60
    parts = [line.split(" ")[0] for line in lines[2:]]
    assert "".join(parts) == "a-rather-long-name-of-an-agent-that-users-may-want-to-copy"


def test_a_narrow_terminal_omits_columns_instead_of_squeezing_them(
    process: Process, process_store: CheckpointStore
) -> None:
    add_agent(process_store)
    code, shown = process.on_a_terminal("list", columns=40)
    assert code == 0
    title, _, row = plain(shown).splitlines()
    assert title.split() == ["agent", "status", "iteration", "kept"]
    assert row.split() == ["user-42", "failed", "3", "3"]


def test_the_last_columns_are_omitted_to_keep_names_on_one_line(
    process: Process, process_store: CheckpointStore
) -> None:
    name = "571e3433-f94c-4cbf-876a-c31d17dc9276"
    ids = add_agent(process_store, name, status=RunStatus.SUCCEEDED)
    process.run("pin", ids[1])

    _, listed = process.on_a_terminal("list", columns=80)
    _, _, row = plain(listed).splitlines()
    assert row.split()[:2] == [name, "succeeded"]

    _, shown = process.on_a_terminal("show", name, "--part", "checkpoints", columns=80)
    *_, third, second, first = plain(shown).splitlines()
    assert [row.split()[0] for row in (first, second, third)] == ids
    assert second.split()[2] == "pinned"


def test_output_and_progress_bar_do_not_share_a_line(
    process: Process, process_store: CheckpointStore, tmp_path: Path
) -> None:
    for name in ("one", "two", "three"):
        add_agent(process_store, name)
    exported = str(tmp_path / "agents.jsonl")
    process.run("export", "-o", exported)
    code, shown = process.on_a_terminal("--store", f"sqlite:///{tmp_path}/other.db", "import", exported)
    assert code == 0
    assert "importing bytes" in shown
    # The line of the bar has been erased.
    lines = re.findall(r"([^\n]*?)(?:one|two|three): 3 checkpoints, 1 run\n", shown)
    assert [before.endswith("\x1b[2K") for before in lines] == [True, True, True]


def test_an_export_to_a_terminal_shows_no_progress_bar(
    process: Process, process_store: CheckpointStore, tmp_path: Path
) -> None:
    add_agent(process_store)
    code, shown = process.on_a_terminal("export")
    assert (code, shown) == (0, process.run("export").stdout)
    _, shown = process.on_a_terminal("export", "-o", str(tmp_path / "agents.jsonl"))
    assert "exporting" in shown


def test_a_message_cannot_control_the_terminal(
    process: Process, process_store: CheckpointStore
) -> None:
    conversation = Conversation(messages=[Message.user(EVIL), {"type": EVIL, EVIL: EVIL}])
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    conversation.append(Message.assistant([{"type": "text", "text": EVIL}], tool_calls=[call]))
    state = {EVIL: EVIL}
    process_store.save(
        make_checkpoint(EVIL, conversation, state=state, metadata={EVIL: EVIL}, run_id=EVIL)
    )
    for arguments in (["show", EVIL], ["list"]):
        code, shown = process.on_a_terminal(*arguments)
        assert code == 0
        assert "markup[/] :smile:" in plain(shown).replace("\n", "")
        assert not set(plain(shown)) & {"\x07", "\x08", "\r", "\x9b", "\u202e"}
    commands = commands_for(process_store)
    for arguments in (["show", EVIL], ["list"], ["tail", EVIL]):
        assert not set(commands(*arguments).stdout) & {"\x1b", "\x07", "\x08", "\r", "\x9b", "\u202e"}
    as_json = commands("show", EVIL, "--json").stdout
    assert as_json.strip().isprintable()
    assert json.loads(as_json)["checkpoint"]["conversation"]["messages"][0]["content"] == EVIL


#: Characters that a terminal obeys, or that change the direction of a line. The escapes that the
#: commands write themselves only color text, move the cursor and erase lines.
OBEYED = re.compile(
    "\x1b(?!\\[[0-9;?]*[mKAhlGJ])|\x1b\\[2J|[\x07\x08\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)
#: All of these, and characters that JSON does not have to escape.
VILE = f"Grüße {EVIL} \x7f \x9d0;owned\x9c \u2028 \u2066 \U000e0041"


def add_control_characters(store: CheckpointStore, tmp_path: Path) -> None:
    """Make an agent with control characters wherever stored data can contain them."""
    store.add_run(make_run(VILE, VILE, task=VILE, error=VILE, status="failed", delivered=True))
    store.record_step(make_step(VILE, VILE, VILE, name=VILE, value={VILE: VILE}))
    for checkpoint_id in (VILE, f"{VILE} 2"):
        checkpoint = make_checkpoint(
            VILE,
            Conversation(messages=[Message.user(VILE), {"type": VILE, VILE: VILE}]),
            state={VILE: VILE},
            metadata={VILE: VILE},
            run_id=VILE,
        )
        store.save(checkpoint.model_copy(update={"id": checkpoint_id}))
    store.pin(VILE, VILE)
    (tmp_path / "exported").write_bytes(b"".join(export_agents(store, [VILE])))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list"], 0),
        (["show", VILE], 0),
        (["tail", VILE], 1),
        (["diff", VILE, f"{VILE} 2"], 0),
        (["pin", VILE, "--label", VILE], 0),
        (["pin", VILE, "--off"], 0),
        (["fork", VILE, "--as", f"{VILE} 3"], 0),
        (["cancel", VILE], 0),
        (["resume", VILE], 1),
        (["prune", VILE, "--keep", "1"], 0),
        (["prune"], 0),
        (["delete", VILE, "--yes"], 0),
        (["export"], 0),
        (["export", "-o", "/dev/stdout"], 0),
        (["export", f"no {VILE}"], 66),
        (["import", "EXPORTED"], 0),
        (["--store", "OTHER", "import", "EXPORTED"], 0),
        (["doctor"], 1),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_no_command_prints_control_characters(
    process: Process, process_store: CheckpointStore, tmp_path: Path, arguments: list[str], code: int
) -> None:
    add_control_characters(process_store, tmp_path)
    if arguments == ["doctor"]:
        with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
            database.execute("UPDATE ckpt_saves SET messages = x'7b7d'")
    if arguments == ["prune"]:
        with (tmp_path / "proj.py").open("a") as app:
            app.write("app.conf.ckpt_keep = 1\n")
        process_store.pin(VILE, None)
    named = {"EXPORTED": str(tmp_path / "exported"), "OTHER": f"sqlite:///{tmp_path}/other.db"}
    ended, shown = process.on_a_terminal(*(named.get(one, one) for one in arguments))
    assert ended == code, shown
    assert "owned" in shown
    assert [hex(ord(found[0])) for found in OBEYED.findall(shown)] == []


def test_an_export_is_escaped_for_a_terminal_and_unchanged_in_a_file(
    process: Process, process_store: CheckpointStore, tmp_path: Path
) -> None:
    add_control_characters(process_store, tmp_path)
    whole = (tmp_path / "exported").read_bytes()

    _, shown = process.on_a_terminal("export")

    assert "Grüße" in shown
    assert [json.loads(line) for line in shown.splitlines()] == [
        json.loads(line) for line in whole.splitlines()
    ]
    assert process.run("export").stdout.encode() == whole
    process.run("export", "-o", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == whole
    assert "\x9b".encode() in whole  # there is something to escape


def test_output_longer_than_the_terminal_uses_a_pager(
    process: Process, process_store: CheckpointStore
) -> None:
    add_agent(process_store, iterations=20)
    process.environment["PAGER"] = f"{sys.executable} -c 'print(\"paged\")'"
    assert plain(process.on_a_terminal("show", "user-42", lines=20)[1]) == "paged\n"
    assert "paged" not in process.on_a_terminal("show", "user-42", "--no-pager", lines=20)[1]


@pytest.mark.parametrize("command", ["show", "export"])
def test_a_closed_pipe_ends_the_command_quietly(
    process: Process, process_store: CheckpointStore, command: str
) -> None:
    # More than fits into a pipe.
    conversation = Conversation(messages=[Message.user("x" * 900) for _ in range(200)])
    process_store.save(make_checkpoint("long", conversation))
    names = {"show": ["long", "--all"], "export": []}
    reader, writer = os.pipe()
    os.close(reader)
    with process.start(command, *names[command], stdout=writer) as running:
        os.close(writer)
        _, output = running.communicate(timeout=240)
    assert (running.returncode, output) == (141, "")


@pytest.mark.parametrize("command", ["list", "export"])
def test_a_full_disk_is_reported_in_one_line(
    process: Process, process_store: CheckpointStore, command: str
) -> None:
    add_agent(process_store)
    with Path("/dev/full").open("wb") as full, process.start(command, stdout=full) as running:
        _, output = running.communicate(timeout=240)
    assert running.returncode == 1
    assert output == "Error: Cannot write the output: No space left on device.\n"


def test_an_unavailable_store_is_reported_in_one_line(process: Process) -> None:
    # Like all options of Celery, this one can be set in the environment.
    process.environment["CELERY_CKPT_STORE"] = f"redis://127.0.0.1:{free_port()}/0"
    output = process.run("list", code=69).stderr
    assert len(output.splitlines()) == 1
    assert "did not answer" in output


def test_an_interrupted_command_ends_quietly(process: Process, process_store: CheckpointStore) -> None:
    add_agent(process_store, status="running", delivered=False)
    with process.start("tail", "user-42") as running:
        assert running.stdout is not None
        until(lambda: "running" in running.stdout.readline(), 20, "tail has printed the status")
        running.send_signal(signal.SIGINT)
        _, output = running.communicate(timeout=240)
    assert (running.returncode, output.strip()) == (130, "")


def test_delete_asks_for_confirmation_on_a_terminal(
    process: Process, process_store: CheckpointStore
) -> None:
    add_agent(process_store)
    code, shown = process.on_a_terminal("delete", "user-42", answer=b"n\n")
    assert "Permanently delete user-42, with 3 checkpoints?" in shown
    assert code == 130
    assert len(process_store.history("user-42")) == 3


def test_the_shell_completes_the_names_of_agents(
    process: Process, process_store: CheckpointStore
) -> None:
    for name in ("user-1", "user-2", "other"):
        add_agent(process_store, name)
    words = "celery -A proj ckpt show us"
    environment = {**process.environment, "_CELERY_COMPLETE": "bash_complete"}
    environment |= {"COMP_WORDS": words, "COMP_CWORD": "5"}
    slower = "from celery_ckpt.cli import options; options._COMPLETION_SECONDS = 60"
    launch = f"import sys; sys.argv[0] = 'celery'; {slower}; from celery.__main__ import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", launch], env=environment, capture_output=True, text=True, timeout=240
    )
    assert (found.stdout.splitlines(), found.stderr) == (["plain,user-1", "plain,user-2"], "")
