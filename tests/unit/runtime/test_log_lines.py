"""What workers log: one fixed phrase for each event, with agent, task and run in the same place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_ckpt.runtime import log_lines
from celery_ckpt.testing import make_run
from tests.support.ledger import Ledger
from tests.support.tasks.scenarios import count, fair
from tests.support.wait import until
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Worker
from tests.support.workers.scenario import scenario

PHRASES = {
    name: value
    for name, value in vars(log_lines).items()
    if name.isupper() and not name.startswith("_") and isinstance(value, str) and name != "UNKNOWN"
}
PAGE = Path(__file__).parents[3] / "docs/howto/monitor.md"


@pytest.mark.parametrize("name", PHRASES)
def test_every_line_names_agent_task_and_run_in_the_same_place(name: str) -> None:
    form = r"[A-Z][a-z][^=%:]+: agent=%s task=%s run=%s( [a-z]+=%[sd])*"
    assert re.fullmatch(form, PHRASES[name])


@pytest.mark.parametrize("name", PHRASES)
def test_every_line_is_documented_with_its_fields(name: str) -> None:
    phrase, _, fields = PHRASES[name].partition(" agent=%s task=%s run=%s")
    [row] = [line for line in PAGE.read_text().splitlines() if f"| `{phrase}` |" in line]
    described = row.rpartition(f"`{phrase}` |")[2]
    assert re.findall(r"`([a-z]+)`", described) == re.findall(r"([a-z]+)=", fields)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("user-7", "user-7"),
        ("", "-"),
        ("two words", "'two words'"),
        ("a task=other", "'a task=other'"),
        ("a\nRun handed off: agent=b", r"'a\nRun handed off: agent=b'"),
        ("\u202eevil", r"'\u202eevil'"),
    ],
)
def test_no_name_looks_like_another_field_or_line(name: str, shown: str) -> None:
    assert log_lines.shown(name) == shown


def test_an_unknown_value_is_a_dash() -> None:
    assert log_lines.identity(make_run("agent", "run", task="")) == ("agent", "-", "run")
    assert log_lines.identity_of_agent("agent") == ("agent", "-", "-")


def lines(worker: Worker, phrase: str) -> list[str]:
    """Return the lines of that kind in a worker's log, from their phrase on."""
    found = re.findall(rf"\[[^]]*INFO/[^]]*\] ({phrase}: .*)", worker.log())
    return [str(line) for line in found]


@pytest.mark.usefixtures("celery_app")
@scenario()
def test_a_hand_off_and_a_resume_are_logged_once_each(
    start_worker: StartWorker,
) -> None:
    worker = start_worker()
    result = fair.apply_async((3, 0), agent_id="user-7")
    result.get(timeout=60)

    who = f"agent=user-7 task=fair run={result.id}"
    assert lines(worker, "Run handed off") == [
        f"Run handed off: {who} iteration=1 reason=iterations_per_task=1 is reached",
        f"Run handed off: {who} iteration=2 reason=iterations_per_task=1 is reached",
    ]
    assert lines(worker, "Run resumed") == [
        f"Run resumed: {who} attempt=2 iteration=1 steps=2",
        f"Run resumed: {who} attempt=3 iteration=2 steps=4",
    ]


@pytest.mark.usefixtures("celery_app")
@scenario()
def test_the_log_says_what_a_shutdown_and_a_kill_did_to_the_run(
    start_worker: StartWorker, ledger: Ledger
) -> None:
    worker = start_worker()
    ledger.hold("tool 2")
    result = count.delay(3, 0)
    ledger.wait_for_call("tool 2", 30)
    worker.term()
    worker.wait_exit(60)
    who = f"agent={result.id} task=count run={result.id}"
    [handed_off] = lines(worker, "Run handed off")
    assert handed_off == f"Run handed off: {who} iteration=2 reason=the worker is shutting down"

    ledger.hold("tool 3")
    worker.start().wait_ready()
    ledger.wait_for_call("tool 3", 60)
    worker.kill_tree()
    ledger.let_go()
    worker.start().wait_ready()
    result.get(timeout=60)

    lost = f"Run lost its worker and was requeued: {who} attempt=2"
    until(lambda: lost in worker.log(), 30, "the watchdog reports it")
    attempts = [re.search(r" attempt=(\d+) ", line)[1] for line in lines(worker, "Run resumed")]  # type: ignore[index]
    assert attempts == ["2", "3"]
