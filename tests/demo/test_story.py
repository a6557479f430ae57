"""The story that is derived from the notes in a ledger, and how it is shown."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from celery_ckpt.demo.ledger import End, Note, Payment, Story
from celery_ckpt.demo.screen import bill, drawn
from celery_ckpt.demo.stage import DURABLE, PLAIN


def story(*notes: tuple[Any, ...]) -> Story:
    """Return the story of notes that are a second apart: what, which worker, facts."""
    seen = Story()
    for second, (what, worker, facts) in enumerate(notes):
        seen.add(Note(what, float(second), worker, facts))
    return seen


def call(worker: int, iteration: int) -> tuple[Any, ...]:
    return ("call", worker, {"iteration": iteration, "dollars": 0.1})


def killed_and_resumed() -> Story:
    return story(
        ("sent", 0, {}),
        ("begin", 1, {}),
        call(1, 1),
        ("checkpoint", 1, {"iteration": 1}),
        call(1, 2),
        ("tool", 1, {"name": "read"}),
        call(1, 3),
        ("killed", 1, {}),
        ("resume", 3, {"saved": 1, "replays": [2, 2]}),
        call(3, 3),
        ("answer", 0, {}),
    )


def test_a_call_in_flight_at_a_kill_is_paid_for_again_and_recorded_calls_are_not() -> None:
    seen = killed_and_resumed()
    killed, successor = seen.attempts
    assert (killed.end, successor.end) == (End.KILLED, End.ANSWERED)
    assert successor.iterations == {2: Payment.REPLAYED, 3: Payment.PAID_AGAIN}
    assert (seen.model_calls, seen.repeated_calls, seen.replayed, seen.tools) == (4, 1, 2, 1)
    assert seen.dollars == pytest.approx(0.4)
    assert seen.seconds(99.0) == 10.0


def test_workers_are_numbered_by_the_order_in_which_they_begin() -> None:
    seen = killed_and_resumed()
    assert [attempt.shown for attempt in seen.attempts] == [1, 2]
    assert "worker 2 loads checkpoint 1, replays 2 steps" in [event.text for event in seen.events]


def test_an_attempt_that_a_new_one_finds_unfinished_was_stopped() -> None:
    seen = story(("sent", 0, {}), ("begin", 1, {}), call(1, 1), ("begin", 2, {}), call(2, 1))
    assert [attempt.end for attempt in seen.attempts] == [End.STOPPED, None]
    assert seen.attempts[1].iterations == {1: Payment.PAID_AGAIN}


@pytest.mark.parametrize("columns", [80, 104])
def test_the_screen_fits_and_keeps_its_height(columns: int) -> None:
    def lines(seen: Story) -> list[str]:
        sides: Any = [SimpleNamespace(kind=kind, story=seen) for kind in (DURABLE, PLAIN)]
        console = Console(file=io.StringIO(), width=columns, color_system=None)
        console.print(drawn(sides, columns))
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    empty, full = lines(Story()), lines(killed_and_resumed())
    assert len(empty) == len(full) <= 23
    assert max(map(len, full)) <= columns
    assert any("worker 2" in line and "↺" in line and "✓" in line for line in full)


def test_the_bill_has_a_column_for_each_side() -> None:
    sides: Any = [SimpleNamespace(kind=kind, story=killed_and_resumed()) for kind in (DURABLE, PLAIN)]
    console = Console(file=io.StringIO(), width=80)
    console.print(bill(sides, is_plain=True))
    seen = console.file.getvalue()  # type: ignore[attr-defined]
    assert "model calls paid                     4                  4" in seen
    assert "pretend price                    $0.40              $0.40" in seen
