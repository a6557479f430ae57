"""What the ledger concludes from its notes."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.ledger import Ledger, Note, names
from tests.support.wait import until

HERE = os.getpid()


def test_notes_are_read_as_written(ledger: Ledger) -> None:
    first = ledger.note("run", "call", name="search", arguments=["a"])
    ledger.note("other", "call", name="search")

    assert ledger.notes("run") == [first]
    assert ledger.notes(what="call")[0]["arguments"] == ["a"]


def test_an_incomplete_line_is_not_read(ledger: Ledger) -> None:
    whole = ledger.note("run", "begin")
    with ledger.path.open("ab") as file:
        file.write(b'["run", "e')

    assert ledger.notes() == [whole]


def test_a_call_of_the_same_name_by_another_run_is_not_a_repetition(ledger: Ledger) -> None:
    for run, name in [("a", "one"), ("b", "one"), ("a", "two"), ("a", "one")]:
        ledger.call(run, name)

    assert names(ledger.calls(run_id="a")) == ["one", "two", "one"]
    assert ledger.repeated() == {("a", "one"): 2}


def test_a_body_records_how_it_ended(ledger: Ledger) -> None:
    with pytest.raises(SystemExit), ledger.body("run", attempt=2):
        raise SystemExit(-241)

    (body,) = ledger.bodies("run")
    assert (body.pid, body.attempt, body.how) == (HERE, 2, "SystemExit")


def test_two_bodies_of_one_run_in_one_process_are_detected(ledger: Ledger) -> None:
    with ledger.body("run"), ledger.body("run"):
        pass

    with pytest.raises(AssertionError, match="two bodies of run run at the same time"):
        ledger.never_two_bodies_at_once("run")


def test_consecutive_bodies_and_bodies_of_different_runs_are_allowed(ledger: Ledger) -> None:
    with ledger.body("run"), ledger.body("other"):
        pass
    with ledger.body("run"):
        pass

    ledger.never_two_bodies_at_once("run")
    ledger.never_two_bodies_at_once("other")


def test_a_killed_body_ends_at_the_kill(ledger: Ledger) -> None:
    ledger.note("run", "begin", body="killed")
    ledger.killed(HERE)
    with ledger.body("run"):
        pass

    ledger.never_two_bodies_at_once("run")
    assert [body.how for body in ledger.bodies("run")] == ["killed", "returned"]


def test_a_body_that_starts_during_a_kill_is_recorded_as_killed(ledger: Ledger) -> None:
    killed, successor = HERE, HERE + 1
    _write(ledger, Note("", "killed", 0.0, HERE, {"pids": [killed]}))
    _write(ledger, Note("run", "begin", 1.0, killed, {"body": "a"}))
    _write(ledger, Note("run", "begin", 2.0, successor, {"body": "b"}))
    _write(ledger, Note("run", "end", 3.0, successor, {"body": "b"}))

    ledger.never_two_bodies_at_once("run")
    assert [(body.end, body.how) for body in ledger.bodies("run")] == [
        (1.0, "killed"),
        (3.0, "returned"),
    ]


def test_a_body_without_an_end_is_still_running(ledger: Ledger) -> None:
    ledger.note("run", "begin", body="silent")
    ledger.killed(HERE + 1)
    with ledger.body("run"):
        pass

    with pytest.raises(AssertionError, match="running"):
        ledger.never_two_bodies_at_once("run")


def test_a_frozen_body_is_inactive_until_it_thaws(ledger: Ledger) -> None:
    ledger.note("run", "begin", body="frozen")
    ledger.frozen(HERE)
    ledger.note("run", "begin", body="successor")
    ledger.note("run", "end", body="successor")
    ledger.thawed(HERE)
    ledger.note("run", "end", body="frozen")

    ledger.never_two_bodies_at_once("run")


def test_a_thawed_body_next_to_its_successor_is_detected_after_the_grace_period(ledger: Ledger) -> None:
    frozen, successor = HERE, HERE + 1
    _write(ledger, Note("run", "begin", 0.0, frozen, {"body": "a"}))
    _write(ledger, Note("", "frozen", 1.0, HERE, {"pids": [frozen]}))
    _write(ledger, Note("run", "begin", 2.0, successor, {"body": "b"}))
    _write(ledger, Note("", "thawed", 3.0, HERE, {"pids": [frozen]}))
    _write(ledger, Note("run", "end", 3.5, frozen, {"body": "a"}))
    _write(ledger, Note("run", "end", 9.0, successor, {"body": "b"}))

    ledger.never_two_bodies_at_once("run", grace_after_thaw=0.6)
    with pytest.raises(AssertionError, match="two bodies"):
        ledger.never_two_bodies_at_once("run", grace_after_thaw=0.4)


def _write(ledger: Ledger, note: Note) -> None:
    """Write a note with a given time."""
    ledger._append(json.dumps([note.run_id, note.what, note.at, note.pid, note.facts]).encode() + b"\n")


def test_a_held_call_continues_when_it_is_released(ledger: Ledger) -> None:
    ledger.hold("search")
    with ThreadPoolExecutor() as threads:
        held, free = (threads.submit(ledger.call, "run", name) for name in ("search", "answer"))
        ledger.wait_for_call("search", 10)
        free.result(60)
        ledger.hold()
        other = threads.submit(ledger.call, "run", "another")
        ledger.wait_for_call("another", 10)
        assert [held.done(), other.done()] == [False, False]

        ledger.let_go()

        assert [held.result(60)["name"], other.result(60)["name"]] == ["search", "another"]
    ledger.call("run", "at once")


def test_a_timeout_shows_the_ledger(ledger: Ledger) -> None:
    ledger.call("run", "search")

    with pytest.raises(AssertionError, match=r"(?s)call 'answer' in the ledger.*name='search'"):
        ledger.wait_for_call("answer", 0.05)


def test_a_timeout_shows_the_last_answer(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"a file appears \(last: \[\]\)"):
        until(lambda: list(tmp_path.iterdir()), 0.05, "a file appears")
