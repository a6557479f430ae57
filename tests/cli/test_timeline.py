"""What show --timeline and tail print of an event log."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_ckpt import CheckpointStore, MemoryCheckpointStore
from celery_ckpt.event_log import LogEntry
from celery_ckpt.views.follower import Follower
from tests.support.cli import Commands, add_agent, commands_for

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def call(kind: str, seconds: float, attempt: int, name: str, **more: Any) -> LogEntry:
    data = {"run_id": "run-of-user-42", "attempt": attempt, "iteration": 2, "call": "tool"}
    return LogEntry(kind, at(seconds), {**data, "name": name, **more})


def history() -> list[LogEntry]:
    """Return the log of an attempt that was lost, and of its successor."""
    run = {"run_id": "run-of-user-42"}
    calling = {"call": "llm", "name": "ask", "began_at": 1767268803000}
    lost = {"attempt": 1, "how": "lost", "renewed_at": 1767268804000, "calling": calling}
    return [
        LogEntry("attempt", at(0), {**run, "attempt": 1, "worker": "celery@one"}),
        call("call", 1, 1, "look_up", took=1200, usage={"input_tokens": 1000, "output_tokens": 234}),
        call("call", 2, 1, "fetch", took=30, error="ValueError: no \x1b[31m"),
        LogEntry("ended", at(90), {**run, **lost}),
        LogEntry("attempt", at(90), {**run, "attempt": 2, "worker": "celery@two"}),
        call("replay", 91, 2, "look_up"),
        LogEntry("action", at(92), {"action": "pin", "by": "ann", "label": "good"}),
        LogEntry("ended", at(93), {**run, "attempt": 2, "how": "failed", "why": "no model"}),
        LogEntry("settled", at(93), {**run, "status": "failed"}),
    ]


@pytest.fixture
def logged(any_store: CheckpointStore) -> Commands:
    """Return commands on a store of each kind, whose agent has a log."""
    add_agent(any_store)
    any_store.note("user-42", history(), copied=True)
    return commands_for(any_store)


def words(line: str) -> str:
    return " ".join(line.split())


def test_a_timeline_shows_attempts_with_their_calls(logged: Commands) -> None:
    lines = logged("show", "user-42", "--timeline").stdout.splitlines()
    shown = [words(line) for line in lines]

    def clock(seconds: float) -> str:
        return at(seconds).astimezone().strftime("%m-%d %H:%M:%S")

    seen = at(4).astimezone().strftime("%H:%M:%S")
    assert shown[-6:] == [
        f"{clock(0)} 1 min 30 s attempt 1 of run run-of-user-42 on celery@one "
        f"lost, last seen {seen}, calling llm ask",
        f"{clock(1)} 1.2 s 2. tool look_up ok",
        rf"{clock(2)} 30 ms 2. tool fetch ValueError: no \x1b[31m",
        f"{clock(90)} 3.0 s attempt 2 of run run-of-user-42 on celery@two failed: no model",
        f"{clock(91)} 2. tool look_up replayed",
        f"{clock(92)} pin by ann: label=good",
    ]


def test_a_timeline_is_printed_as_json(logged: Commands) -> None:
    found = json.loads(logged("show", "user-42", "--timeline", "--json").stdout)
    assert found["agent_id"] == "user-42"
    lost, failed = found["attempts"]
    assert (lost["attempt"], lost["worker"], lost["took"]) == (1, "celery@one", 90_000)
    assert (lost["end"]["how"], lost["end"]["calling"]["name"]) == ("lost", "ask")
    assert [entry["name"] for entry in lost["entries"]] == ["look_up", "fetch"]
    assert lost["entries"][0]["usage"] == {"input_tokens": 1000, "output_tokens": 234}
    assert failed["end"] == {"how": "failed", "why": "no model"}
    assert [entry["kind"] for entry in failed["entries"]] == ["replay", "action"]
    assert (lost["began_at"], failed["ended_at"]) == ("2026-01-01T12:00:00Z", "2026-01-01T12:01:33Z")


def test_a_timeline_of_an_empty_log_says_so(commands: Commands) -> None:
    add_agent(commands.store)
    assert commands("show", "user-42", "--timeline").stdout == "The event log is empty.\n"
    assert "no agent" in commands.fails("show", "nobody", "--timeline", code=66).lower()


def test_tail_begins_with_the_last_attempt(logged: Commands) -> None:
    lines = logged("tail", "user-42", "-n", "0", code=1).stdout.splitlines()
    said = [line.split("    ", 1)[1] for line in lines]
    assert said[:4] == [
        "attempt 2 of run run-of-user-42 started on celery@two",
        "tool look_up, iteration 2, replayed",
        "pin by ann: label=good",
        "attempt 2 of run run-of-user-42 failed: no model",
    ]
    objects = [
        json.loads(line)
        for line in logged("tail", "user-42", "-n", "0", "--json", code=1).stdout.splitlines()
    ]
    assert [one["kind"] for one in objects[:4]] == ["attempt", "replay", "action", "ended"]
    assert (objects[1]["name"], objects[1]["at"]) == ("look_up", "2026-01-01T12:01:31Z")


def test_a_follower_reports_new_entries_once(any_store: CheckpointStore) -> None:
    add_agent(any_store)
    follower = Follower(any_store, "user-42", 0)
    follower.look()
    any_store.note("user-42", history(), copied=True)
    seen = at(4).astimezone().strftime("%H:%M:%S")
    assert [one.what for one in follower.look()][:4] == [
        "attempt 1 of run run-of-user-42 started on celery@one",
        "tool look_up, iteration 2, took 1.2 s, 1,234 tokens",
        "tool fetch, iteration 2, failed after 30 ms: ValueError: no \x1b[31m",
        f"attempt 1 of run run-of-user-42 lost, last seen {seen}, calling llm ask",
    ]
    assert follower.look() == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry._replace(data={}),
        lambda entry: entry._replace(data={**entry.data, "attempt": "one"}),
        lambda entry: entry._replace(data={**entry.data, "took": "long", "calling": 1}),
    ],
)
def test_damaged_entries_keep_nobody_from_reading_the_rest(
    damage: Callable[[LogEntry], LogEntry],
) -> None:
    store = MemoryCheckpointStore()
    add_agent(store)
    follower = Follower(store, "user-42", 0)
    follower.look()
    store.note("user-42", [*map(damage, history()), call("call", 99, 3, "whole", took=1)], copied=True)
    assert "whole" in commands_for(store)("show", "user-42", "--timeline").stdout
    assert "whole" in follower.look()[-1].what
