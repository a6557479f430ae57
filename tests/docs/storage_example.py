"""The small agent whose bytes docs/reference/storage-format.md shows, saved anew into each store."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from redis import Redis

from celery_ckpt import Checkpoint, CheckpointEvent, Conversation
from celery_ckpt.checkpoint import Entry
from celery_ckpt.records import RunRecord, Step
from celery_ckpt.store import CheckpointStore

AGENT = "weather {eu}"
_LOCATOR = "dhy3qavyojwm3hml"
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def checkpoints() -> list[Checkpoint]:
    """Two messages; two more inside iteration 1, with its entry; a compaction, under a foreign id."""
    talk = Conversation()
    talk.append({"role": "system", "content": "Be brief."})
    talk.append({"role": "user", "content": "Rain in Köln?"})
    first = _checkpoint(1, talk, 0)
    entry = Entry(conversation=talk)
    talk.append({"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]})
    talk.append({"role": "tool", "tool_call_id": "c1", "content": "yes"})
    event = CheckpointEvent.TOOL_CALL_COMPLETE
    second = _checkpoint(2, talk, 1, event=event, run_id="run-1", state={"n": 1}, entry=entry)
    talk.replace([talk.messages[0], {"role": "user", "content": "(rain: yes)"}])
    third = _checkpoint(3, talk, 1, id="import-3")
    return [first, second, third]


def _checkpoint(number: int, talk: Conversation, iteration: int, **fields: object) -> Checkpoint:
    name = f"{_LOCATOR}-0{number:023d}"
    at = _NOON + timedelta(seconds=number)
    given = {"id": name, "agent_id": AGENT, "conversation": talk, "iteration": iteration}
    return Checkpoint(**{**given, "created_at": at, **fields})


def fill(store: CheckpointStore) -> None:
    """Save it all, and a step and a run; then prune the first checkpoint."""
    store.event_log_limit = 0
    for checkpoint in checkpoints():
        store.save(checkpoint)
    step = Step(agent_id=AGENT, run_id="run-1", iteration=1, key="c1", name="rain", value="yes")
    store.record_step(step)
    store.add_run(_run("run-1"))
    store.remove(AGENT, [checkpoints()[0].id])


def _run(run_id: str, **fields: object) -> RunRecord:
    return RunRecord(agent_id=AGENT, run_id=run_id, task="weather", created_at=_NOON, **fields)


def begin(store: CheckpointStore) -> dict[str, str]:
    """Start the run, block another, schedule the agent. Return what to show for the random values."""
    store.event_log_limit = 0
    start = store.start_run(_run("run-1", delivery="tag 7"), "worker-1", 60)
    assert start.lease is not None
    store.start_run(_run("run-2"), "worker-2", 60)
    ends_at, end = start.lease.expires_at, _NOON + timedelta(minutes=1)
    return {
        start.lease.nonce: "DwtRRlxbkP3i",
        ends_at.isoformat(): end.isoformat(),
        f"{_microseconds(ends_at)}": f"{_microseconds(end)}",
        f"{_microseconds(ends_at) // 1000}": f"{_microseconds(end) // 1000}",
        f"{store.schedule(AGENT, 30)}": f"{_microseconds(_NOON + timedelta(seconds=30))}",
    }


def _microseconds(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def news(before: list[str], after: list[str], chance: dict[str, str]) -> Iterator[str]:
    """The lines that are new or changed, below their headings, without what chance made."""
    heading, known = "", set(before)
    for line in after:
        if not line.startswith(" "):
            heading = line
        elif line not in known:
            if heading:
                yield heading
            heading = ""
            for made, shown in chance.items():
                line = line.replace(made, shown)
            yield line


def redis_lines(client: Redis) -> list[str]:
    """Every key with its content."""
    lines = []
    for key in sorted(client.keys()):
        kind = client.type(key).decode()
        read = {
            "hash": lambda key: sorted(client.hgetall(key).items()),
            "list": lambda key: list(enumerate(client.lrange(key, 0, -1))),
            "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        }[kind]
        lines.append(f"{kind} {key.decode()}")
        for left, right in read(key):
            left, right = (x.decode() if isinstance(x, bytes) else f"{x:.0f}" for x in (left, right))
            lines.append(f"    {left}  =  {right}" if kind == "hash" else f"    {left}  {right}")
    return _steady(lines)


def sqlite_lines(path: Path) -> list[str]:
    """Every row of every table, as SQL literals."""
    with sqlite3.connect(path) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = [name for (name,) in names if name.startswith("ckpt_")]
        lines = []
        for table in tables:
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            lines += [table, *(f"    {' | '.join(map(_cell, row))}" for row in rows)]
    connection.close()
    return _steady(lines)


def _cell(value: object) -> str:
    text = value.decode() if isinstance(value, bytes) else "NULL" if value is None else f"{value}"
    return text.replace("\n", "\\n") or "''"


def file_lines(root: Path) -> list[str]:
    """Every file with its content."""
    lines = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        lines.append(f"{path.relative_to(root)}")
        # Chance has no place in an example.
        content = re.sub(r'(?<="generation":")\w+', "0f1e2d3c4b5a6978", path.read_text())
        lines += [f"    {line}" for line in content.splitlines()]
    return _steady(lines)


def _steady(lines: list[str]) -> list[str]:
    """The same with other times: when a sweep should look, and when the agent changed."""
    heading, steady = "", []
    due_at, changed_at = (str(_microseconds(_NOON + timedelta(seconds=after))) for after in (3, 4))
    for line in lines:
        heading = heading if line.startswith(" ") else line
        if "sweep" in heading:
            line = re.sub(r"\b[0-9]{16}\b", due_at, line)
        elif "change" in heading or line.startswith("    changed "):
            line = re.sub(r"\b[0-9]{16}\b", changed_at, line)
        elif heading == "ckpt_agents":
            line = re.sub(r"\b[0-9]{16}(?= [|] [a-z]+ [|] '' [|] 0$)", changed_at, line)
        steady.append(line)
    return steady
