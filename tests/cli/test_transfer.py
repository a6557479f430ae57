"""export and import copy agents exactly, and refuse damaged files by line."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from celery_ckpt import (
    AgentRun,
    Checkpoint,
    CheckpointStore,
    Conversation,
    Entry,
    MemoryCheckpointStore,
    Message,
    agent_task,
    open_store,
)
from celery_ckpt.errors import NotAnExport, SchemaTooNew, StoreUnavailable
from celery_ckpt.event_log import LogEntry
from celery_ckpt.retention.report import PrunePlan
from celery_ckpt.runtime.broker.envelope import AGENT_HEADER
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.testing import Fault, FaultyStore
from celery_ckpt.testing.contract.fixtures import settled
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_message, make_run
from celery_ckpt.transfer import export_agents, import_agents, sections
from celery_ckpt.transfer.format import LineWriter
from tests.support.cli import Commands, add_agent, commands_for
from tests.support.encryption import encrypted

PROVIDERS = json.loads((Path(__file__).parents[1] / "support/provider_messages.json").read_text())


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_CALL = {"run_id": "r", "attempt": 1, "iteration": 1, "call": "llm", "name": "ask ü", "took": 5}
LOG = [
    LogEntry("attempt", NOON, {"run_id": "r", "attempt": 1, "worker": "celery@host"}),
    LogEntry("call", NOON, {**_CALL, "usage": {"input_tokens": 3, "cost": 0.5}}),
    LogEntry("call", NOON, {**_CALL, "run_id": "growing", "error": "ValueError: no"}),
    LogEntry(
        "ended",
        NOON,
        {
            "run_id": "r",
            "attempt": 1,
            "how": "lost",
            "calling": {"call": "llm", "name": "ask", "began_at": 1},
        },
    ),
    LogEntry("action", NOON, {"action": "pin", "by": "ann", "label": "good"}),
]


def exported(store: CheckpointStore, *names: str) -> list[bytes]:
    return list(export_agents(store, names or sorted(store.agents())))


def imported(store: CheckpointStore, lines: list[bytes]) -> list[tuple[str, int, int]]:
    found = list(import_agents(store, lines))
    assert [one.error for one in found if one.error] == []
    return [(one.agent_id, one.checkpoints, one.runs) for one in found]


def everything(store: CheckpointStore) -> dict[str, object]:
    """Return everything in a store, for comparison."""
    return {
        agent_id: (
            [checkpoint.to_bytes() for checkpoint in store.list(agent_id)],
            store.runs(agent_id),
            [store.steps(agent_id, run.run_id) for run in store.runs(agent_id)],
            store.policy(agent_id),
            [entry[:3] for entry in store.event_log(agent_id)],
        )
        for agent_id in sorted(store.agents())
    }


def fill(store: CheckpointStore) -> None:
    """Make agents of all kinds: growing, compacted, of any provider, without runs."""
    _, second, *_ = add_agent(store, "growing", iterations=5)
    store.note("growing", LOG, copied=True)
    store.pin(second, "before the change")
    envelope = {"headers": {"task": "tests.agent", "id": "run-of-waiting"}, "a": [1, None]}
    add_agent(store, "waiting", iterations=0, status="queued", delivered=False, envelope=envelope)
    conversation = Conversation(777, PROVIDERS.values())
    store.save(make_checkpoint("providers \x1b ü", conversation, state={"π": [1.5, True, 10**30]}))
    entered = conversation.copy()
    conversation.replace(
        [*conversation.messages[:2], Message.user("summary"), *conversation.messages[-3:]]
    )
    entry = Entry(conversation=entered, state={"before": 1})
    store.save(make_checkpoint("providers \x1b ü", conversation, 2, entry=entry))
    repeated = Conversation(messages=[make_message("same")] * 3)
    store.save(make_checkpoint("repeating", repeated))
    store.save(Checkpoint(**{**dict(make_checkpoint("foreign id")), "id": "an id of another making"}))


def test_imported_agents_equal_the_exported_ones(any_store: CheckpointStore) -> None:
    original = MemoryCheckpointStore()
    fill(original)
    lines = exported(original)

    imported(any_store, lines)

    assert everything(any_store) == everything(original)
    assert exported(any_store) == lines


def test_importing_twice_changes_nothing(any_store: CheckpointStore) -> None:
    original = MemoryCheckpointStore()
    fill(original)
    lines = exported(original)
    imported(any_store, lines)
    before = everything(any_store)
    assert {counts for _, *counts in map(list, imported(any_store, lines)) for counts in counts} == {0}
    assert everything(any_store) == before


def test_an_interrupted_import_is_reported_and_can_be_completed(any_store: CheckpointStore) -> None:
    original = MemoryCheckpointStore()
    add_agent(original, iterations=6)
    lines = exported(original)
    faulty = FaultyStore(any_store, Fault(at=5))  # the lease, then three checkpoints
    output = []
    with pytest.raises(StoreUnavailable):
        output.extend(import_agents(faulty, lines))  # results before the error are kept
    assert [(one.checkpoints, one.runs, one.in_part) for one in output] == [(3, 0, True)]
    assert imported(any_store, lines) == [("user-42", 3, 1)]
    assert everything(any_store) == everything(original)


@pytest.mark.parametrize("change", ["pruned", "continued", "another"])
def test_an_agent_with_a_different_history_is_refused_and_unchanged(
    any_store: CheckpointStore, change: str
) -> None:
    original = MemoryCheckpointStore()
    add_agent(original, iterations=4)
    lines = exported(original)
    if change == "another":
        add_agent(any_store, iterations=4)
    else:
        imported(any_store, lines)
        any_store.prune("user-42", 2)
        if change == "continued":
            any_store.save(make_checkpoint("user-42"))
    before = everything(any_store)
    [refused] = import_agents(any_store, lines)
    assert refused.error is not None
    assert "Agent 'user-42' already has a different history in this store" in str(refused.error)
    assert everything(any_store) == before


def test_an_agent_that_has_continued_since_the_export_is_unchanged(any_store: CheckpointStore) -> None:
    original = MemoryCheckpointStore()
    add_agent(original)
    lines = exported(original)
    imported(any_store, lines)
    any_store.save(make_checkpoint("user-42", iteration=9))
    assert imported(any_store, lines) == [("user-42", 0, 0)]
    assert any_store.history("user-42")[0].iteration == 9


def test_an_existing_id_with_different_content_is_refused() -> None:
    original, other = MemoryCheckpointStore(), MemoryCheckpointStore()
    checkpoint = make_checkpoint()
    original.save(checkpoint)
    other.save(checkpoint.model_copy(update={"conversation": make_conversation()}))
    [refused] = import_agents(other, exported(original))
    assert refused.error is not None
    assert checkpoint.id in str(refused.error)
    assert "Delete the agent there first, or import into another store" in str(refused.error)


def test_an_export_contains_each_message_once(tmp_path: Path) -> None:
    original, conversation = MemoryCheckpointStore(), Conversation()
    for number in range(1, 1001):
        conversation.append(Message.assistant(f"{number} {'x' * 2000}"))
        original.save(make_checkpoint("long", conversation, number))
    lines = exported(original)
    assert sum(map(len, lines)) < 1.2 * conversation.size
    with open_store(f"sqlite:///{tmp_path}/store.db") as copy:
        assert imported(copy, lines) == [("long", 1000, 0)]
        assert copy.load_latest("long") == original.load_latest("long")
        assert imported(copy, lines) == [("long", 0, 0)]


def test_a_changed_byte_is_refused_and_its_line_is_named() -> None:
    original = MemoryCheckpointStore()
    add_agent(original, "first")
    add_agent(original, "second")
    lines = exported(original)
    second = next(number for number, line in enumerate(lines) if b'"agent_id":"second"' in line)
    for number, line in enumerate(lines):
        for at in (2, 15, len(line) // 2, len(line) - 2):
            damaged = lines.copy()
            damaged[number] = line[:at] + (b"#" if line[at : at + 1] != b"#" else b"!") + line[at + 1 :]
            store = MemoryCheckpointStore()
            with pytest.raises(NotAnExport, match=f"Line {number + 1} ") as output:
                list(import_agents(store, damaged))
            assert output.value.line == number + 1
            whole = ["first", "second"] if line is lines[-1] else ["first"] if number >= second else []
            assert list(store.agents()) == whole


def test_a_lost_repeated_or_moved_line_is_refused() -> None:
    original = MemoryCheckpointStore()
    add_agent(original)
    lines = exported(original)
    for number in range(len(lines) - 1):
        for changed in (
            [*lines[:number], *lines[number + 1 :]],
            [*lines[: number + 1], *lines[number:]],
            [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]],
            lines[:number],
        ):
            store = MemoryCheckpointStore()
            with pytest.raises(NotAnExport):
                list(import_agents(store, changed))


def forged(*described: tuple[str, dict[str, object]]) -> list[bytes]:
    """Return lines with valid checksums and any content."""
    writer = LineWriter()
    return [writer.line(kind, **fields) for kind, fields in (("export", {"format": 1}), *described)]


AGENT = ("agent", {"agent_id": "a"})
HEADER = {"created_at": 0, "messages": 1, "iteration": 1}
MESSAGE = ("message", {"message": {"role": "user"}})


@pytest.mark.parametrize(
    ("line", "described"),
    [
        (2, [MESSAGE]),
        (2, [("agent", {"agent_id": ""})]),
        (2, [("agent", {"agent_id": 7})]),
        (2, [("agent", {})]),
        (3, [AGENT, ("agent", {"agent_id": "b"})]),
        (3, [AGENT, ("virus", {})]),
        (3, [AGENT, ("checkpoint", {"id": "x", "messages": "0:1", "header": HEADER})]),
        (3, [AGENT, ("checkpoint", {"id": "x", "messages": "0:9999999999", "header": HEADER})]),
        (4, [AGENT, MESSAGE, ("checkpoint", {"id": "x", "messages": "0:1", "header": {}})]),
        (4, [AGENT, MESSAGE, ("checkpoint", {"id": "x", "messages": "0:1", "header": []})]),
        (4, [AGENT, MESSAGE, ("checkpoint", {"id": "x", "messages": 5, "header": HEADER})]),
        (4, [AGENT, MESSAGE, ("checkpoint", {"id": "", "messages": "0:1", "header": HEADER})]),
        (
            4,
            [
                AGENT,
                MESSAGE,
                ("checkpoint", {"id": "x", "messages": "0:1", "header": {**HEADER, "e": 1}}),
            ],
        ),
        (3, [AGENT, ("message", {"message": "no object"})]),
        (3, [AGENT, ("step", {"run_id": "r", "key": "k", "agent_id": "b"})]),
        (3, [AGENT, ("run", {"run_id": "r", "status": "dancing", "created_at": 0})]),
        (3, [AGENT, ("end", {"agent_id": "b"})]),
        (3, [AGENT, ("policy", {"pins": {"x": "y"}})]),
        (3, [AGENT, ("policy", {"keep": -1})]),
        (2, [("finished", {"agents": 3})]),
        (3, [("finished", {"agents": 0}), AGENT]),
    ],
)
def test_forged_lines_are_refused_and_nothing_is_written(
    line: int, described: list[tuple[str, dict[str, object]]]
) -> None:
    counts = {"messages": 1, "checkpoints": 1, "steps": 0, "runs": 0}
    whole = [*described, ("end", {"agent_id": "a", **counts}), ("finished", {"agents": 1})]
    store = MemoryCheckpointStore()
    with pytest.raises(NotAnExport) as output:
        list(import_agents(store, forged(*whole)))
    assert output.value.line == line
    assert list(store.agents()) == []


@pytest.mark.parametrize(
    ("headers", "both"),
    [
        ({"task": "proj.wipe", "id": "r"}, ["'proj.agent'", "'proj.wipe'"]),
        ({"task": "proj.agent", "id": "other"}, ["'r'", "'other'"]),
        ({"task": "proj.agent", "id": "r", AGENT_HEADER: "victim"}, ["'a'", "'victim'"]),
        # A message of Celery's protocol 1 has its task name in the body.
        ({}, ["'proj.agent'", "None"]),
        (None, ["'proj.agent'", "None"]),
    ],
    ids=["task", "id", "agent", "neither", "no headers"],
)
def test_a_run_with_a_message_of_another_run_is_refused(
    headers: dict[str, str] | None, both: list[str]
) -> None:
    fields = {"run_id": "r", "task": "proj.agent", "created_at": "2026-01-01T00:00:00Z"}
    run = ("run", {**fields, "envelope": {"headers": headers, "text": "[]"}})
    end = ("end", {"agent_id": "a", "messages": 0, "checkpoints": 0, "steps": 0, "runs": 1})
    store = MemoryCheckpointStore()
    with pytest.raises(NotAnExport) as output:
        list(import_agents(store, forged(AGENT, run, end, ("finished", {"agents": 1}))))
    assert all(name in str(output.value) for name in both), output.value
    assert (output.value.line, list(store.agents())) == (3, [])


def test_published_runs_are_imported_with_their_messages(commands: Commands) -> None:
    @agent_task(app=commands.app, name="proj.agent")
    def agent(run: AgentRun) -> None: ...

    agent.apply_async(agent_id="named")
    unnamed = agent.delay().id
    other = MemoryCheckpointStore()

    imported(other, exported(commands.store))

    assert everything(other) == everything(commands.store)
    assert [run.has_envelope for name in ("named", unnamed) for run in other.runs(name)] == [True] * 2


def test_the_import_uses_the_same_agent_header_as_the_runtime() -> None:
    assert sections.AGENT_HEADER == AGENT_HEADER


def test_an_export_of_a_newer_version_is_refused() -> None:
    writer = LineWriter()
    with pytest.raises(SchemaTooNew, match="This export has format version 2"):
        list(import_agents(MemoryCheckpointStore(), [writer.line("export", format=2)]))


def test_export_and_import_move_agents_between_stores(
    commands: Commands, any_store: CheckpointStore, tmp_path: Path
) -> None:
    add_agent(commands.store, "one")
    add_agent(commands.store, "two", status="running", delivered=False)
    file, other = tmp_path / "agents.jsonl", commands_for(any_store)

    output = commands("export", "-o", str(file)).stderr
    assert output.startswith("Exported 2 agents, ")
    assert file.stat().st_mode & 0o777 == 0o600
    assert commands("export").stdout_bytes == file.read_bytes()
    assert other("import", str(file)).stdout.splitlines() == [
        "one: 3 checkpoints, 1 run",
        "two: 3 checkpoints, 1 run (1 open, see celery ckpt resume)",
    ]
    assert "one: already in the store." in other("import", "-", input=file.read_bytes()).stdout
    [first, _] = map(json.loads, other("import", str(file), "--json").stdout.splitlines())
    assert first == {
        "agent_id": "one",
        "checkpoints": 0,
        "runs": 0,
        "open_runs": 0,
        "error": None,
        "in_part": False,
        "skipped_entries": 0,
    }
    assert everything(any_store) == everything(commands.store)


def test_import_names_the_line_of_a_damaged_file(commands: Commands, tmp_path: Path) -> None:
    add_agent(commands.store)
    file, other = tmp_path / "agents.jsonl", commands_for(MemoryCheckpointStore())
    commands("export", "user-42", "-o", str(file))
    file.write_bytes(file.read_bytes().replace(b"result 2", b"result 7"))
    line = other.fails("import", str(file), code=65)
    assert "Line 9 cannot be imported: it was changed, or a line before it is missing." in line
    assert list(other.store.agents()) == []
    (tmp_path / "other").write_text("something\nelse")
    assert "this is not an export" in other.fails("import", str(tmp_path / "other"), code=65)
    assert "does not exist" not in other("import", str(tmp_path / "no"), code=2).stdout


def test_the_command_reports_a_partly_imported_agent(commands: Commands, tmp_path: Path) -> None:
    add_agent(commands.store)
    commands("export", "-o", str(tmp_path / "file"))
    other, whole = commands_for(MemoryCheckpointStore()), MemoryCheckpointStore()
    AppContext.of(other.app).store = FaultyStore(whole, Fault(at=3))
    output = other("import", str(tmp_path / "file"), code=69).stderr
    assert "Error: Agent 'user-42' was imported only in part (1 checkpoint): " in output
    assert len(whole.history("user-42")) == 1


def test_the_command_refuses_an_agent_with_a_different_history(
    commands: Commands, tmp_path: Path
) -> None:
    add_agent(commands.store)
    commands("export", "-o", str(tmp_path / "file"))
    other = commands_for(MemoryCheckpointStore())
    add_agent(other.store)
    line = other.fails("import", str(tmp_path / "file"), code=1)
    assert "Agent 'user-42' already has a different history in this store" in line
    assert "Delete the agent there first, or import into another store" in line

    # The advice in the error works.
    other("delete", "user-42", "--yes")
    assert other("import", str(tmp_path / "file")).stdout == "user-42: 3 checkpoints, 1 run\n"


def test_runs_that_the_store_has_deleted_are_not_imported_after_newer_ones(
    commands: Commands, tmp_path: Path
) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for run_id in ("old", "last"):
        settled(commands.store, "user-7", run_id, noon)
    commands("export", "-o", str(tmp_path / "file"))
    [snapshot] = commands.store.snapshots(["user-7"])
    commands.store.apply([PrunePlan(snapshot, runs_before=noon)])

    line = commands.fails("import", str(tmp_path / "file"), code=1)
    assert "Agent 'user-7' already has a different history" in line
    assert [run.run_id for run in commands.store.runs("user-7")] == ["last"]


def test_an_unwritable_file_is_reported_in_one_line(commands: Commands, tmp_path: Path) -> None:
    assert "Cannot write" in commands.fails("export", "-o", str(tmp_path / "no/file"), code=1)


def test_an_export_follows_a_symbolic_link_and_does_not_replace_it(
    commands: Commands, tmp_path: Path
) -> None:
    # /dev/stdout is a link. A device is not a regular file either.
    (tmp_path / "link").symlink_to("behind it")
    commands("export", "-o", str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert b'"finished"' in (tmp_path / "behind it").read_bytes()


def test_damage_stops_an_export_unless_it_is_skipped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        ids = add_agent(store)
        store.add_run(make_run("other"))
        commands = commands_for(store)
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
            connection.execute("UPDATE ckpt_saves SET record = x'00' WHERE id = ?", [ids[1]])
        assert ids[1] in commands.fails("export", "-o", str(tmp_path / "file"), code=65)
        assert not (tmp_path / "file").exists()
        output = commands("export", "--skip-damaged", "-o", str(tmp_path / "file"), code=65).stderr
    assert ids[1] in output
    other = MemoryCheckpointStore()
    with (tmp_path / "file").open("rb") as file:
        list(import_agents(other, file))
    assert [one.id for one in other.history("user-42")] == [ids[2], ids[0]]


# -- the event log -----------------------------------------------------------------------------------


def rewritten(lines: list[bytes], change: Callable[[dict[str, Any]], None]) -> list[bytes]:
    """Return an export whose lines were changed, with correct checksums."""
    writer, changed = LineWriter(), list[bytes]()
    for line in lines:
        fields = json.loads(line)
        del fields["sum"]
        change(fields)
        changed.append(writer.line(**fields))
    return changed


def test_an_export_has_no_live_entries() -> None:
    store = MemoryCheckpointStore()
    lease = store.acquire("agent", "owner", 60)
    store.follow("agent", 60)
    store.save(make_checkpoint("agent"), lease)
    store.stream(lease, [LogEntry("token", NOON, "a")])
    store.note("agent", LOG, copied=True)
    assert len(store.event_log("agent")) == len(LOG) + 2
    lines = [json.loads(line) for line in exported(store)]
    assert [line["entry"][0] for line in lines if line["kind"] == "entry"] == [e.kind for e in LOG]
    assert lines[-2]["entries"] == len(LOG)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        ["token", 1, {}],
        ["call", "noon", {}],
        ["call", 10**30, {}],
        ["call", 1, None],
        ["call", 1, {"run_id": "r", "usage": [1]}],
        ["ended", 1, {"run_id": "r", "how": "lost", "calling": 5}],
        ["ended", 1, {"run_id": "r", "how": "lost", "calling": {"name": None}}],
        [["call"], 1, {}],
    ],
)
def test_an_entry_that_cannot_be_used_is_skipped_and_counted(
    commands: Commands, tmp_path: Path, entry: Any
) -> None:
    source = MemoryCheckpointStore()
    add_agent(source, "agent", iterations=2)
    source.note("agent", LOG, copied=True)

    def change(line: dict[str, Any]) -> None:
        if line["kind"] == "entry" and line["entry"][0] == "attempt":
            line["entry"] = entry

    path = tmp_path / "export.jsonl"
    path.write_bytes(b"".join(rewritten(exported(source), change)))
    result = commands("import", str(path))
    assert result.stderr == (
        "Warning: skipped 1 entry of the event log of agent 'agent': damaged, or of an unknown kind.\n"
    )
    assert [one[:3] for one in commands.store.event_log("agent")] == [one[:3] for one in LOG[1:]]
    assert len(commands.store.list("agent")) == 2


def test_an_entry_that_the_store_cannot_read_is_left_out_and_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(url)) as store:
        add_agent(store, "agent", iterations=1)
        store.note("agent", LOG, copied=True)
    with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        database.execute("UPDATE ckpt_events SET entry = x'00' WHERE number & 4294967295 = 2")
    result = commands_for(url)("export", "-o", str(tmp_path / "export.jsonl"))
    assert "skipped 1 entry of the event log of agent 'agent'" in result.stderr
    target = MemoryCheckpointStore()
    imported(target, (tmp_path / "export.jsonl").read_bytes().splitlines(keepends=True))
    assert [one.kind for one in target.event_log("agent")] == ["attempt", "call", "ended", "action"]


def test_the_log_of_an_agent_that_has_one_stays() -> None:
    source, target = MemoryCheckpointStore(), MemoryCheckpointStore()
    add_agent(source, "agent", iterations=1)
    source.note("agent", LOG, copied=True)
    lines = exported(source)
    imported(target, lines)
    before = target.event_log("agent")
    source.add_run(make_run("agent", "another"))
    imported(target, exported(source))
    assert target.event_log("agent") == before
    assert len(target.runs("agent")) == len(source.runs("agent"))


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_log_is_exported_from_and_imported_into_encrypted_stores(is_encrypted: bool) -> None:
    plain, inner = MemoryCheckpointStore(), MemoryCheckpointStore()
    safe = encrypted(inner)
    source, target = (safe, plain) if is_encrypted else (plain, safe)
    add_agent(source, "agent", iterations=1)
    source.note("agent", LOG, copied=True)
    imported(target, exported(source))
    assert [one[:3] for one in target.event_log("agent")] == [one[:3] for one in LOG]


def test_a_store_without_an_event_log_imports_the_rest() -> None:
    source, target = MemoryCheckpointStore(), MemoryCheckpointStore()
    add_agent(source, "agent", iterations=1)
    source.note("agent", LOG, copied=True)
    target.event_log_limit = 0
    assert imported(target, exported(source)) == [("agent", 1, 1)]
    assert target.event_log("agent") == []
