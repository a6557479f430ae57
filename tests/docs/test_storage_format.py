"""docs/reference/storage-format.md is enough to write a reader, is true, and leaves nothing out."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from zlib import crc32

import pytest
from redis import Redis

import celery_ckpt
from celery_ckpt import Checkpoint, CheckpointEvent, Conversation, Message, open_store
from celery_ckpt.checkpoint import Entry
from celery_ckpt.format_version import FORMAT_VERSION
from celery_ckpt.records import Lease, RunRecord, RunStatus, Schedule, Step
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.redis.keys import SCHEDULE_SHARDS, SHARDS, Keys
from celery_ckpt.stores.redis.run_line import IN_FRONT
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step
from celery_ckpt.usage import Usage
from tests.docs import storage_example
from tests.docs.raw_reader import Damaged, RawFiles, RawRedis, RawSqlite, TooNew

HERE = Path(__file__).parent
PACKAGE = Path(celery_ckpt.__file__).parent
PAGE = (HERE.parents[1] / "docs" / "reference" / "storage-format.md").read_text(encoding="utf-8")
NODE, SQLITE_SHELL = shutil.which("node"), shutil.which("sqlite3")

ODD_NAMES = [
    "../../etc/passwd",
    "a{b}%c%7B",
    "{}",
    "ünï/🎈\u2028",
    " ",
    ".",
    "two\nlines\r\n",
    "nul\0 and \x1f and \x7f",
    "a:b;c|d'e\"f\\g",
    "𝄞" * 512,
]


@dataclass
class Place:
    """A store of one kind, opened as often as wanted, and what readers need to find it."""

    kind: str
    url: str
    where: str
    raw: Any
    node: Popen[str] | None

    def open(self) -> CheckpointStore:
        return open_store(self.url)


@pytest.fixture(scope="session")
def node() -> Iterator[Popen[str] | None]:
    """The reader in the other language, if there is one: a process that answers whoever asks."""
    if NODE is None:
        yield None
        return
    pipes: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "text": True, "encoding": "utf-8"}
    with Popen([NODE, str(HERE / "reader.mjs")], **pipes) as process:
        yield process


@pytest.fixture(params=["file", "sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path, node: Popen[str] | None) -> Iterator[Place]:
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        with Redis.from_url(url) as client:
            yield Place("redis", url, url, RawRedis(client), node)
    elif request.param == "sqlite":
        path = tmp_path / "store.db"
        yield Place("sqlite", f"sqlite:///{path}", str(path), RawSqlite(path), node)
    else:
        yield Place(
            "file", f"file://{tmp_path}/store", f"{tmp_path}/store", RawFiles(tmp_path / "store"), node
        )


@pytest.fixture
def store(place: Place) -> Iterator[CheckpointStore]:
    opened = place.open()
    yield opened
    opened.close()


Read = Callable[[str], bytes | None]


class Refused(Exception):
    """The reader in the other language did not know what to do."""


@pytest.fixture(params=["python", "node"])
def read(request: pytest.FixtureRequest, place: Place) -> Read:
    """How a reader that knows only the page reads the latest checkpoint of an agent."""
    if request.param == "python":
        return place.raw.latest
    if NODE is None:
        pytest.skip("Node.js is not installed; the reader in Python has read the same")
    if place.kind == "sqlite" and SQLITE_SHELL is None:
        pytest.skip("reader.mjs needs the sqlite3 command; the reader in Python has read the same")
    return lambda agent_id: _node(place, agent_id)


def _node(place: Place, agent_id: str, what: str = "checkpoint") -> bytes | None:
    assert place.node
    assert place.node.stdin
    assert place.node.stdout
    place.node.stdin.write(json.dumps([place.kind, place.where, what, agent_id]) + "\n")
    place.node.stdin.flush()
    status, said = json.loads(place.node.stdout.readline())
    if status == 3:
        return None
    if status == 2:
        raise TooNew(said)
    if status:
        raise Refused(said) if "    at " in said else Damaged(said)
    return base64.b64decode(said)


# -- what is read is what was saved --------------------------------------------------------------------

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": 'Köln 🎈 \u2028 \x00\x1f\x7f \\n \n " /'},
    {"z": 1, "a": [1.0, -0.0, 1e300, 5e-324, 0.1, 2**64 + 1, -(10**400), True, None], "": {}},
    {"role": "assistant", "content": [{"type": "text", "text": "é" * 3000}]},
    {},
]


def _grown(store: CheckpointStore, agent_id: str, times: int = 12) -> Conversation:
    talk = Conversation().with_system_prompt("Be brief.")
    for number in range(times):
        talk.append(Message.user(f"{agent_id} {number}"))
        store.save(make_checkpoint(agent_id, talk, number))
    return talk


def appended(place: Place, store: CheckpointStore) -> None:
    _grown(store, "agent")


def any_json(place: Place, store: CheckpointStore) -> None:
    talk = Conversation(max_tokens=7, messages=MESSAGES)
    fields = {"state": {"ü": MESSAGES}, "metadata": {"k\n": "v 🎈"}, "run_id": 'run "1"'}
    store.save(make_checkpoint("agent", talk, 3, event=CheckpointEvent.LLM_RESPONSE, **fields))


def nothing_in_it(place: Place, store: CheckpointStore) -> None:
    store.save(make_checkpoint("agent", Conversation(), 0))


def compacted(place: Place, store: CheckpointStore) -> None:
    talk = _grown(store, "agent")
    old = talk.messages
    talk.replace([old[9], old[9], Message.user("in short"), old[3], *old[5:8]])
    store.save(make_checkpoint("agent", talk, 13))
    talk.append(Message.user("and on"))
    store.save(make_checkpoint("agent", talk, 14))


def inside_an_iteration(place: Place, store: CheckpointStore) -> None:
    talk = _grown(store, "agent")
    entry = Entry(conversation=talk, state={"before": 1})
    talk.append(Message.user("more"))
    store.save(make_checkpoint("agent", talk, 13, entry=entry))


def compacted_inside_an_iteration(place: Place, store: CheckpointStore) -> None:
    talk = _grown(store, "agent")
    entry = Entry(conversation=Conversation(9, talk.messages), state={"before": 1})
    talk.replace([*talk.messages[:4], Message.user("in short")])
    store.save(make_checkpoint("agent", talk, 13, entry=entry))
    talk.append(Message.user("and on"))
    store.save(make_checkpoint("agent", talk, 13, entry=entry))


def pruned(place: Place, store: CheckpointStore) -> None:
    talk = _grown(store, "agent")
    talk.replace([Message.user("in short"), *talk.messages[-2:]])
    store.save(make_checkpoint("agent", talk, 13))
    store.remove("agent", [info.id for info in store.history("agent")[1:]])
    talk.append(Message.user("and on"))
    store.save(make_checkpoint("agent", talk, 14))


def gone_back(place: Place, store: CheckpointStore) -> None:
    _grown(store, "agent")
    store.remove("agent", [info.id for info in store.history("agent")[:3]])


def begun_anew(place: Place, store: CheckpointStore) -> None:
    _grown(store, "agent")
    store.remove("agent", [info.id for info in store.history("agent")])
    _grown(store, "agent", 2)


def written_by_two(place: Place, store: CheckpointStore) -> None:
    _grown(store, "agent")
    other = place.open()
    theirs, ours = other.load_latest("agent").conversation, store.load_latest("agent").conversation
    for number in range(3):
        theirs.append(Message.user(f"theirs {number}"))
        other.save(make_checkpoint("agent", theirs, 13 + number))
        ours.append(Message.user(f"ours {number}"))
        store.save(make_checkpoint("agent", ours, 13 + number))
    other.close()


def large(place: Place, store: CheckpointStore) -> None:
    talk = Conversation()
    for number in range(6):
        talk.append(Message.user(f"{number}" * 1_500_000))
        store.save(make_checkpoint("agent", talk, number))
    talk.replace(talk.messages[2:])
    store.save(make_checkpoint("agent", talk, 7))
    store.remove("agent", [info.id for info in store.history("agent")[1:]])


def saved_under_an_id_of_its_own(place: Place, store: CheckpointStore) -> None:
    _grown(store, "agent", 2)
    known = store.load_latest("agent")
    store.save(Checkpoint(**{**known.__dict__, "id": "my id/№ 1%"}))


@pytest.mark.parametrize(
    "story",
    [
        appended, any_json, nothing_in_it, compacted, inside_an_iteration,
        compacted_inside_an_iteration, pruned, gone_back, begun_anew, written_by_two, large,
        saved_under_an_id_of_its_own,
    ],
    ids=lambda story: story.__name__,
)  # fmt: skip
def test_a_reader_built_from_the_page_reads_the_latest_checkpoint_byte_for_byte(
    story: Callable[..., None], place: Place, store: CheckpointStore, read: Read
) -> None:
    _grown(store, "another agent", 2)
    story(place, store)
    assert read("agent") == store.load_latest("agent").to_bytes()


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_a_reader_built_from_the_page_finds_an_agent_of_any_name(
    name: str, store: CheckpointStore, read: Read
) -> None:
    _grown(store, name, 2)
    assert read(name) == store.load_latest(name).to_bytes()


def test_a_reader_built_from_the_page_finds_nothing_in_an_empty_store(
    store: CheckpointStore, read: Read
) -> None:
    _grown(store, "agent", 2)
    assert read("agent 2") is None
    store.remove("agent", [info.id for info in store.history("agent")])
    assert read("agent") is None


def test_to_bytes_of_a_stored_checkpoint_equals_to_bytes_of_the_original(
    store: CheckpointStore, read: Read
) -> None:
    talk = Conversation(messages=MESSAGES)
    entry = Entry(conversation=Conversation(messages=[*MESSAGES[:3], {"rest": 1}]))
    checkpoint = make_checkpoint("agent", talk, entry=entry)
    store.save(checkpoint)
    assert read("agent") == checkpoint.to_bytes()


def test_the_readers_use_only_what_the_page_documents() -> None:
    source = (HERE / "raw_reader.py").read_text()
    assert re.findall(r"^\s*(?:from|import) celery_ckpt", source, flags=re.MULTILINE) == []
    imported = re.findall(r"^import .* from '(.*)'$", (HERE / "reader.mjs").read_text(), re.MULTILINE)
    assert imported
    assert all(name.startswith("node:") for name in imported)


# -- what is wrong is noticed --------------------------------------------------------------------------


def _edit(place: Place, old: bytes, new: bytes) -> None:
    """Change bytes where they are stored, the CRC of a journal's line along with them."""
    if place.kind == "redis":
        with Redis.from_url(place.url) as client:
            key = "ckpt:{agent}:agent"
            for field, value in client.hgetall(key).items():
                if field.startswith(b"c:"):
                    client.hset(key, field, value.replace(old, new))
            for index, line in enumerate(client.lrange("ckpt:{agent}:log", 0, -1)):
                client.lset("ckpt:{agent}:log", index, line.replace(old, new))
    elif place.kind == "sqlite":
        connection = sqlite3.connect(place.where)
        rows = connection.execute("SELECT number, record, messages FROM ckpt_saves").fetchall()
        for row, record, messages in rows:
            values = record.replace(old, new), messages.replace(old, new), row
            connection.execute(
                "UPDATE ckpt_saves SET record = ?, messages = ? WHERE number = ?", values
            )
        connection.commit()
        connection.close()
    else:
        [path] = Path(place.where).rglob("journal-00000001")
        lines = path.read_bytes().replace(old, new).split(b"\n")
        path.write_bytes(b"\n".join(_with_crc(line) for line in lines))


def _with_crc(line: bytes) -> bytes:
    return b"#%08x %b" % (crc32(line[10:]), line[10:]) if line.startswith(b"#") else line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"agent 1", b"agent 7"),
        (b'"iteration":', b'"iteratiom":'),
        (b" 0:2,", b" 1:2,"),
        (b":1 ", b":9999999999 "),
    ],
    ids=["a message", "the header", "the ranges", "too long a range"],
)
def test_a_reader_built_from_the_page_detects_a_changed_byte(
    old: bytes, new: bytes, place: Place, store: CheckpointStore, read: Read
) -> None:
    _grown(store, "agent", 2)
    _edit(place, old, new)
    with pytest.raises(Damaged):
        read("agent")


def test_a_reader_built_from_the_page_refuses_a_newer_record(
    place: Place, store: CheckpointStore, read: Read
) -> None:
    _grown(store, "agent", 1)
    if place.kind == "sqlite":
        connection = sqlite3.connect(place.where)
        connection.execute("UPDATE ckpt_saves SET format = 2")
        connection.commit()
        connection.close()
    else:
        _edit(place, b"1 1 0 - ", b"2 1 0 - ")
    with pytest.raises(TooNew):
        read("agent")


@pytest.mark.parametrize("place", ["redis"], indirect=True)
@pytest.mark.parametrize("tip", [None, "2", "2 c:unknown"])
def test_a_reader_built_from_the_page_detects_a_missing_latest_checkpoint_pointer(
    tip: str | None, place: Place, store: CheckpointStore, read: Read
) -> None:
    _grown(store, "agent", 2)
    with Redis.from_url(place.url) as client:
        client.hdel("ckpt:{agent}:agent", "tip")
        if tip is not None:
            client.hset("ckpt:{agent}:agent", "tip", tip)
    with pytest.raises(Damaged):
        read("agent")


def test_a_reader_built_from_the_page_skips_a_torn_save_and_detects_a_lost_one(
    tmp_path: Path, node: Popen[str] | None
) -> None:
    place = Place("file", f"file://{tmp_path}", str(tmp_path), RawFiles(tmp_path), node)
    readers = [place.raw.latest, *([lambda name: _node(place, name)] if NODE else [])]
    store = place.open()
    _grown(store, "agent", 3)
    expected = store.load_latest("agent").to_bytes()
    [path] = tmp_path.rglob("journal-*")
    whole = path.read_bytes()
    torn = [whole[:20], whole[: whole.index(b"\n") + 1], whole[: whole.index(b"\n") + 9]]
    for tail in torn:
        path.write_bytes(whole + tail)
        assert [read("agent") for read in readers] == [expected] * len(readers)
    path.write_bytes(whole[:-1])
    for read in readers:
        with pytest.raises(Damaged):
            read("agent")


# -- the other things a store keeps --------------------------------------------------------------------


def _lease(lease: Lease) -> tuple[int, str, str]:
    return lease.token, lease.nonce, lease.owner


@pytest.mark.parametrize("agent_id", ["agent", "a{b}%c 🎈"])
def test_steps_runs_leases_names_and_foreign_ids_follow_the_rules_of_the_page(
    agent_id: str, place: Place, store: CheckpointStore
) -> None:
    run = make_run(agent_id, "𝄞: b")
    steps = [make_step(agent_id, run.run_id, f"key {n} ü", iteration=n % 3) for n in range(12)]
    for step in steps:
        store.record_step(step)
    store.record_step(make_step(agent_id, "𝄞"), paid=Usage.of("of no run"))
    store.drop_steps(agent_id, run.run_id, first=1, last=1)
    runs = [run, *(make_run(agent_id) for _ in range(11))]
    for number in runs:
        store.add_run(number)
    runs[0] = RunRecord(**{**run.__dict__, "status": RunStatus.FAILED, "error": "ö"})
    store.update_run(runs[0])
    paid = Usage.of("a model; ü=1", input_tokens=7, cost=0.25) + Usage.of(output_tokens=2**50)
    steps.append(make_step(agent_id, run.run_id, "paid", iteration=2, usage=paid))
    store.record_step(steps[-1], paid=paid)
    runs[0] = runs[0].model_copy(update={"usage": paid})
    store.save(Checkpoint(**{**make_checkpoint(agent_id).__dict__, "id": "foreign 🎈"}))
    lease = store.acquire(agent_id, "öwner", 60)

    raw = place.raw
    found = [json.loads(step) for step in raw.steps(agent_id, run.run_id)]
    assert found == [_fields(step) for step in steps if step.iteration != 1]
    assert list(raw.runs(agent_id).items()) == [(run.run_id, _fields(run)) for run in runs]
    assert raw.lease(agent_id) == _lease(lease)
    assert raw.agents() == [agent_id]
    assert raw.owner_of_foreign("foreign 🎈") == agent_id
    assert raw.owner_of_foreign("unknown") is None


@dataclass
class Turns:
    """What a reader that knows only the page says of an agent's runs, and of all due times."""

    active: str
    open: list[str]
    runs: list[tuple[str, dict[str, Any]]]
    due_times: dict[str, int]


@pytest.fixture(params=["python", "node"])
def turns(request: pytest.FixtureRequest, place: Place) -> Callable[[str], Turns]:
    """How such a reader reads them."""
    if request.param == "python":
        return lambda name: Turns(
            *place.raw.turns(name), list(place.raw.runs(name).items()), place.raw.due_times()
        )
    if NODE is None or (place.kind == "sqlite" and SQLITE_SHELL is None):
        pytest.skip("Node.js or the sqlite3 command is missing; the reader in Python has read the same")

    def turns_by_node(name: str) -> Turns:
        found = json.loads(_node(place, name, "turns") or b"")
        due_times = json.loads(_node(place, name, "due_times") or b"")
        return Turns(
            found["active"], found["open"], [(n, r) for n, r in found["runs"]], dict(due_times)
        )

    return turns_by_node


def _fields(record: Step | RunRecord) -> dict[str, Any]:
    left_out = {name for name in ("place", "usage", "trace") if not getattr(record, name, None)}
    return record.model_dump(mode="json", exclude={"agent_id", "run_id"} | left_out)


def _ended(run: RunRecord, **changes: Any) -> RunRecord:
    return run.model_copy(update={"status": RunStatus.SUCCEEDED, **changes})


def _as_stored(store: CheckpointStore, agent_id: str, due_times: dict[str, int]) -> Turns:
    activity = store.activity(agent_id)
    runs = [(run.run_id, _fields(run)) for run in store.runs(agent_id)]
    return Turns(activity.active or "", [run.run_id for run in activity.open], runs, due_times)


@pytest.mark.parametrize("agent_id", ["agent", "a{b}%c 🎈"])
def test_runs_turns_and_due_times_follow_the_rules_of_the_page(
    agent_id: str, store: CheckpointStore, turns: Callable[[str], Turns]
) -> None:
    def agree(**expected: Any) -> None:
        found = turns(agent_id)
        assert found == _as_stored(store, agent_id, due_times)
        assert {name: getattr(found, name) for name in expected} == expected

    due_times: dict[str, int] = {}
    store.save(make_checkpoint("another agent"))
    agree(active="", open=[], runs=[])
    first, second, third = (make_run(agent_id, f"{n}|ü: 🎈", envelope={"x": ["y z"]}) for n in range(3))
    times = {"eta": datetime(2100, 1, 1, tzinfo=UTC), "expires_at": datetime(2101, 1, 1, 1, tzinfo=UTC)}
    third = third.model_copy(update=times)
    store.add_run(third)
    start = store.start_run(first.model_copy(update={"delivery": "-", "trace": "00-1 2"}), "w", 60)
    store.start_run(second, "w", 60)
    due_times = {name: store.schedule(name, 60) for name in (agent_id, "some body|else", "c")}
    agree(active=first.run_id, open=[run.run_id for run in (third, first, second)])
    store.save(make_checkpoint(agent_id), start.lease, run=_ended(start.run, result="ö"))
    agree(active=first.run_id)
    store.settle_run(_ended(start.run, result="ö"), start.lease)
    agree(active=second.run_id, open=[third.run_id, second.run_id])
    start = store.start_run(second, "w", 60)
    store.release(start.lease, run=start.run.model_copy(update={"delivery": "% -\n"}))
    start = store.start_run(second, "w", 60)
    store.settle_run(_ended(start.run), start.lease)
    due_times[agent_id] = start.due_at
    assert store.unschedule({"c": due_times.pop("c")}) == 1
    agree(active="", open=[third.run_id])


@pytest.mark.parametrize("place", ["file"], indirect=True)
@pytest.mark.parametrize("is_saved", [True, False])
def test_a_pending_run_left_by_a_crash_counts_if_its_checkpoint_exists(
    is_saved: bool, place: Place, store: CheckpointStore, turns: Callable[[str], Turns]
) -> None:
    start = store.start_run(make_run("agent", "run"), "w", 60)
    checkpoint = make_checkpoint("agent")
    ended = _fields(_ended(start.run))
    [lease] = Path(place.where).rglob("lease")
    pending = {"checkpoint": checkpoint.id, "run": "run", "record": ended}
    if is_saved:
        store.save(checkpoint, start.lease)
    lease.with_name("pending-run").write_text(json.dumps(pending))

    found = turns("agent")
    assert found == _as_stored(store, "agent", {"agent": start.due_at})
    assert found.runs[0][1]["status"] == ("succeeded" if is_saved else "running")


def test_every_index_leads_from_the_name_to_the_agent(place: Place, store: CheckpointStore) -> None:
    for name in ODD_NAMES:
        store.save(make_checkpoint(name))
    assert sorted(place.raw.agents()) == sorted(ODD_NAMES)


# -- the page shows what is written --------------------------------------------------------------------


def _shown(lines: list[str]) -> None:
    assert "\n```text\n" + "\n".join(lines) + "\n```\n" in PAGE


def test_the_page_shows_what_each_store_writes(place: Place, store: CheckpointStore) -> None:
    def lines() -> list[str]:
        if place.kind == "redis":
            with Redis.from_url(place.url) as client:
                return storage_example.redis_lines(client)
        of_kind = {"sqlite": storage_example.sqlite_lines, "file": storage_example.file_lines}
        return of_kind[place.kind](Path(place.where))

    storage_example.fill(store)
    before = lines()
    _shown(before)
    chance = storage_example.begin(store)
    _shown(list(storage_example.news(before, lines(), chance)))


def test_the_page_shows_what_to_bytes_writes() -> None:
    _shown([storage_example.checkpoints()[1].to_bytes().decode()])


# -- the page leaves nothing out -----------------------------------------------------------------------


def _section(title: str) -> str:
    """The text of one section of the page."""
    return re.split(r"^## ", PAGE.partition(f"\n## {title}\n")[2], flags=re.MULTILINE)[0]


def _names_in_code(text: str) -> set[str]:
    """All words that stand in code spans outside the examples."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {word for span in re.findall(r"`([^`]+)`", prose) for word in re.findall(r"[\w.]+", span)}


def test_the_page_documents_the_current_format() -> None:
    assert f"**format {FORMAT_VERSION}**" in PAGE


def test_the_page_names_every_field_of_the_hashes_that_the_scripts_use() -> None:
    fields: set[str] = set()
    for path in (PACKAGE / "stores" / "redis" / "lua").glob("*.lua"):
        for call in re.findall(r"redis\.call\('H\w+', KEYS\[1\],([^)]*)\)", path.read_text()):
            fields |= set(re.findall(r"'([a-z_]+)'", call))
    assert {"tip", "first", "token", "released", "steps"} <= fields
    _, _, table = _section("Redis").partition("| field of `P{TAG}:agent` |")
    cells = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    assert cells[0] == "`c:` and a checkpoint's id"
    assert _names_in_code(" ".join(cells[1:])) == fields


def test_the_page_names_every_key_of_redis() -> None:
    keys, section = Keys("P"), _section("Redis")
    names = [key.decode().replace("{agent}", "{TAG}") for key in keys.all_of("agent")]
    names += [keys.agents("S"), re.sub(r".$", "S", keys.foreign_ids("any"))]
    names += [
        re.sub(r"[0-9]+$", letter, keys.due_times_of("any", schedule).decode())
        for schedule, letter in ((Schedule.WATCHDOG, "N"), (Schedule.SWEEP, "M"))
    ]
    assert [name for name in names if f"| `{name}` |" not in section] == []
    assert f"`{SHARDS}`" in section
    assert f"modulo {SCHEDULE_SHARDS[Schedule.WATCHDOG]}." in section
    assert SCHEDULE_SHARDS[Schedule.SWEEP] == len(SHARDS)


def test_the_page_names_every_field_of_a_runs_line() -> None:
    shown = re.findall(r"└ (\w+)", _section("Redis").partition("A run's line")[2])
    assert shown == ["the", *reversed(["number", "usage", *IN_FRONT])]  # "the other fields"


def test_the_page_names_every_script_that_writes() -> None:
    rows = re.findall(r"^\| `P.*\| (.*) \|$", _section("Redis"), flags=re.MULTILINE)
    writers = {word for row in rows for word in re.findall(r"\w+", row)}
    scripts = {path.stem: path.read_text() for path in PACKAGE.glob("stores/redis/lua/*.lua")}
    commands = "HSET|HINCRBY|HDEL|RPUSH|LREM|LTRIM|ZADD|ZREM|UNLINK"
    shared = re.split(r"^local function (\w+)", scripts.pop("shared"), flags=re.MULTILINE)
    parts = dict(zip(shared[1::2], shared[2::2], strict=True))
    writing = [name for name, body in parts.items() if re.search(f"'({commands})'", body)]
    shared_writers = [
        "push",
        "append_call",
        "note",
        "note_start",
        "tell",
        "take_lease",
        "first_in_line",
    ]
    assert writing == [*shared_writers, "note_blocked", "give_turn", "drop_steps"]
    writing.append("append")
    calls = rf"redis\.call\('({commands})'|\b({'|'.join(writing)})\("
    assert [name for name, text in scripts.items() if re.search(calls, text)] != []
    missing = [n for n, text in scripts.items() if re.search(calls, text) and n not in writers]
    assert missing == []


def test_the_page_names_every_table_and_column() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript((PACKAGE / "stores" / "sqlite" / "schema.sql").read_text())
    query = """
        SELECT t.name, c.name FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c
        WHERE t.type = 'table' AND t.name LIKE 'ckpt_%'"""
    columns = connection.execute(query).fetchall()
    connection.close()
    assert len(columns) > 20
    # A table's rows go from the one that names it to the next.
    parts = re.split(r"^\| `(ckpt_\w+)`", _section("SQLite"), flags=re.MULTILINE)
    described = dict(zip(parts[1::2], parts[2::2], strict=True))
    missing = [c for c in columns if c[1] not in _names_in_code(described.get(c[0], ""))]
    assert missing == []


def test_the_page_names_every_file(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    storage_example.fill(store)
    storage_example.begin(store)
    paths = [path.relative_to(tmp_path / "store") for path in (tmp_path / "store").rglob("*")]
    made = {path.name for path in paths if len(path.parts) == 4} | {path.parts[0] for path in paths}
    for source in (PACKAGE / "stores" / "file").glob("*.py"):
        made |= set(re.findall(r'/ f?"([a-z]+(?:-[a-z]+)?)', source.read_text()))
    assert {"name", "lock", "tip", "lease", "steps", "runs", "pending-run"} <= made
    assert {"agents", "ids", "watchdog", "sweep", "trash"} <= made
    assert "journal-00000001" in made
    named = _section("Files")
    assert [name for name in made if not re.search(rf"`[^`\n]*/{name}\b", named)] == []


def _with_every_field() -> Checkpoint:
    talk = Conversation(5, [{"role": "user"}])
    used = Usage.of("m", input_tokens=1)
    entry = Entry(conversation=talk, state={"a": 1}, after_loop=True, usage=used)
    event = CheckpointEvent.ITERATION
    given = {"metadata": {"a": "b"}, "state": {"a": 1}, "event": event, "run_id": "r", "entry": entry}
    return make_checkpoint(
        conversation=talk, run_metadata={}, after_loop=True, usage=used, counted="key", **given
    )


def test_the_page_names_every_field_of_the_header() -> None:
    checkpoint = _with_every_field()
    fields = Checkpoint.model_fields.items()
    assert [name for name, field in fields if getattr(checkpoint, name) == field.default] == []
    header = json.loads(checkpoint.to_bytes())["header"]
    names = [*header, *(f"entry.{name}" for name in header["entry"])]
    rows = re.findall(r"^\| `([\w.]+)` \|", _section("The header"), flags=re.MULTILINE)
    assert rows == names
    assert {event.value for event in CheckpointEvent} <= _names_in_code(_section("The header"))


def test_the_page_names_every_field_of_steps_runs_and_leases() -> None:
    named = _names_in_code(_section("Steps, runs and leases"))
    fields = {*Step.model_fields, *RunRecord.model_fields} - {"agent_id", "run_id"}
    assert fields | {status.value for status in RunStatus} <= named
    assert {"token", "nonce", "owner"} <= named


def test_the_page_names_every_field_of_to_bytes() -> None:
    section = _section("`Checkpoint.to_bytes`")
    pattern = section.partition("```text\n")[2].partition("\n")[0]
    assert re.findall(r'"(\w+)":', pattern) == list(json.loads(_with_every_field().to_bytes()))
