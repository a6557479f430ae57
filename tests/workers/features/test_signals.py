"""Signals in the process of an agent, and events for monitors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from celery_ckpt import Agents, signals
from celery_ckpt.runtime.attempt.celery_events import _EVENTS
from tests.support.ledger import Note
from tests.support.tasks.signal_log import (
    SIGNALS,
    changing,
    emits_events,
    failing,
    overtaken,
    without_a_store,
)
from tests.support.wait import until
from tests.support.workers.site import Site

SITE = {"include": ("tests.support.tasks.signal_log",), "conf": {"ckpt_lease_ttl": 10}}
PAGE = (Path(__file__).parents[3] / "docs/reference/signals.md").read_text()
ROWS = {
    name: set(re.findall(r"`(\w+)`", arguments))
    for name, arguments in re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|", PAGE, re.MULTILINE)
}


def signals_of(site: Site, run_id: str) -> list[Note]:
    return [note for note in site.ledger.notes(run_id) if note.what in SIGNALS]


def sent(site: Site, run_id: str, name: str) -> Note:
    """Return the only note of that signal. Its arguments are the documented ones."""
    notes = [note for note in signals_of(site, run_id) if note.what == name]
    assert len(notes) == 1, notes
    assert set(notes[0]["kinds"]) == ROWS[name]
    return notes[0]


def test_the_page_has_every_signal_with_its_arguments() -> None:
    assert {name: set(getattr(signals, name).providing_args) for name in signals.__all__} == ROWS


def test_the_page_has_every_event() -> None:
    section = PAGE.partition("## Events")[2]
    assert set(re.findall(r"`(agent-[\w-]+)`", section)) == set(_EVENTS.values())


def test_a_run_emits_its_signals_in_order(site: Site) -> None:
    result = emits_events.delay(3)
    assert result.get(timeout=60) == 3
    site.ledger.wait_for(lambda note: note.what == "agent_finished" and note.run_id == result.id, 10)

    iteration = ["checkpoint_event", "checkpoint_saved"] * 2
    resumed = ["agent_resumed", *iteration]
    # What the end of an iteration has just saved is not saved again, not even at the end of the run.
    story = ["agent_started", *iteration, *iteration, "agent_handed_off"]
    assert [note.what for note in signals_of(site, result.id)] == [*story, *resumed, "agent_finished"]
    assert {note["sender"] for note in signals_of(site, result.id)} == {emits_events.name}
    assert {
        name: set(note["kinds"]) for note in signals_of(site, result.id) if (name := note.what)
    } == {name: ROWS[name] for name in {note.what for note in signals_of(site, result.id)}}
    events = [json.loads(note["texts"]).get("event") for note in signals_of(site, result.id)]
    assert [event for event in events if event] == ["llm_response", "iteration"] * 3
    assert "iterations_per_task=2" in sent(site, result.id, "agent_handed_off")["texts"]
    finished = sent(site, result.id, "agent_finished")
    assert finished["kinds"] == {"run": "AgentRun", "record": "RunRecord"}


def test_a_failure_is_emitted_as_an_end(site: Site) -> None:
    result = failing.delay()
    with pytest.raises(ValueError, match="no"):
        result.get(timeout=60)

    assert [note.what for note in signals_of(site, result.id)] == ["agent_started", "agent_finished"]
    assert sent(site, result.id, "agent_finished")["kinds"]["run"] == "AgentRun"


def test_a_changed_step_is_emitted(site: Site, tmp_path: Path) -> None:
    result = changing.delay(str(tmp_path / "marker"))

    assert result.get(timeout=60) == "NEW"
    assert json.loads(sent(site, result.id, "step_changed")["texts"]) == {"name": "name"}
    who = f"agent={result.id} task={changing.name} run={result.id}"
    warning = f"Step changed since it was recorded and is called again: {who} iteration=0 step=name"
    until(lambda: warning in site.worker.log(), 5, "the worker warns")


def test_a_checkpoint_that_could_not_be_saved_is_emitted(site: Site) -> None:
    result = without_a_store.delay()

    assert result.get(timeout=60) == "done"
    assert sent(site, result.id, "checkpoint_failed")["kinds"]["error"] == "StoreUnavailable"
    assert Agents(site.app).status(result.id).iteration == 2


def test_a_lost_lease_is_emitted(site: Site) -> None:
    result = overtaken.delay()

    site.ledger.wait_for(lambda note: note.what == "lease_lost" and note.run_id == result.id, 10)
    sent(site, result.id, "lease_lost")


def test_pruning_is_emitted(site: Site) -> None:
    pruned: list[dict[str, object]] = []

    def receive(**facts: object) -> None:
        pruned.append(facts)

    result = emits_events.delay(1)
    assert result.get(timeout=60) == 1
    signals.checkpoints_pruned.connect(receive)
    try:
        assert Agents(site.app).prune(result.id, keep=1) == 1
        assert Agents(site.app).prune(result.id, keep=1) == 0
    finally:
        signals.checkpoints_pruned.disconnect(receive)

    [facts] = pruned
    assert facts.keys() - {"sender", "signal"} == ROWS["checkpoints_pruned"]
    assert (facts["sender"], facts["agent_id"], facts["count"]) == (site.app, result.id, 1)


def test_receivers_that_raise_are_logged_and_do_no_harm(site: Site) -> None:
    assert emits_events.delay(1).get(timeout=60) == 1
    until(lambda: "an error of the receiver" in site.worker.log(), 5, "the error is logged")
