"""The truth table of every strategy, and how settings name them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from celery_ckpt import (
    AfterLlmResponse,
    AfterToolCall,
    AnyOf,
    CheckpointEvent,
    CheckpointStrategy,
    EveryN,
    EverySeconds,
    Never,
)
from celery_ckpt.errors import ConfigurationError

TOOL, LLM, ITERATION = CheckpointEvent
EVERYTHING = set(product(range(8), CheckpointEvent))


def at(*iterations: int) -> set[tuple[int, CheckpointEvent]]:
    return set(product(iterations, CheckpointEvent))


def after(*events: CheckpointEvent) -> set[tuple[int, CheckpointEvent]]:
    return set(product(range(8), events))


@pytest.mark.parametrize(
    ("strategy", "yes"),
    [
        (AfterToolCall(), after(TOOL)),
        (AfterLlmResponse(), after(LLM)),
        (EveryN(1), EVERYTHING),
        (EveryN(3), at(0, 3, 6)),
        (EveryN(100), at(0)),
        (Never(), set()),
        (AnyOf(AfterToolCall(), EveryN(3)), after(TOOL) | at(0, 3, 6)),
        (AfterToolCall() | AfterLlmResponse(), after(TOOL, LLM)),
        (Never() | Never(), set()),
        ((Never() | AfterLlmResponse()) | EveryN(5), after(LLM) | at(0, 5)),
    ],
    ids=lambda value: repr(value) if isinstance(value, CheckpointStrategy) else "",
)
def test_strategies_match_their_truth_table(
    strategy: CheckpointStrategy, yes: set[tuple[int, CheckpointEvent]]
) -> None:
    assert {point for point in EVERYTHING if strategy.should_checkpoint(*point)} == yes


def test_the_three_events_have_their_names() -> None:
    assert [event.name for event in CheckpointEvent] == [
        "TOOL_CALL_COMPLETE",
        "LLM_RESPONSE",
        "ITERATION",
    ]


@pytest.mark.parametrize("n", [0, -1, 1.5, "3", None, True])
def test_every_n_needs_a_positive_integer(n: Any) -> None:
    with pytest.raises(ValueError, match="n must be an integer of at least 1"):
        EveryN(n)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_every_seconds_needs_a_positive_number(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        EverySeconds(seconds)


def test_any_of_without_strategies_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one strategy"):
        AnyOf()


def test_a_or_b_is_any_of_a_and_b() -> None:
    assert (AfterToolCall() | EveryN(2)) == AnyOf(AfterToolCall(), EveryN(2))


@pytest.mark.parametrize("strategy", [AfterToolCall(), EveryN(2), Never()])
def test_a_stateless_strategy_is_shared_by_all_runs(strategy: CheckpointStrategy) -> None:
    assert strategy.for_run() is strategy


class ManualClock:
    """A clock that advances only when the test sets it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def answers(strategy: CheckpointStrategy, clock: ManualClock, *times: float) -> list[bool]:
    found = []
    for clock.seconds in times:
        found.append(strategy.should_checkpoint(1, ITERATION))
    return found


def test_every_seconds_saves_once_per_interval() -> None:
    clock = ManualClock()
    strategy = EverySeconds(10, clock=clock)
    assert answers(strategy, clock, 0, 9.9, 10, 10.1, 19.9, 20, 99, 100) == [
        False, False, True, False, False, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrap", [lambda s: s, lambda s: s | Never(), lambda s: Never() | (Never() | s)]
)
def test_each_run_has_its_own_timer(wrap: Any) -> None:
    clock = ManualClock()
    shared = wrap(EverySeconds(10, clock=clock))
    first = shared.for_run()
    assert answers(first, clock, 5) == [False]
    second = shared.for_run()
    assert answers(first, clock, 10) == [True]
    assert answers(second, clock, 10, 14.9, 15) == [False, False, True]


def test_any_of_asks_every_strategy_so_that_each_updates_its_state() -> None:
    clock = ManualClock()
    strategy = EveryN(1) | EverySeconds(10, clock=clock)
    assert answers(strategy, clock, 10) == [True]
    assert strategy.strategies[1].should_checkpoint(1, ITERATION) is False


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("after_tool_call", AfterToolCall()),
        ("after_llm_response", AfterLlmResponse()),
        ("never", Never()),
        ("every:3", EveryN(3)),
        ("seconds:30", EverySeconds(30)),
        ("seconds:0.5", EverySeconds(0.5)),
        (" after_tool_call | every:10 ", AnyOf(AfterToolCall(), EveryN(10))),
        ("never|never|every:1", AnyOf(Never(), Never(), EveryN(1))),
    ],
)
def test_settings_name_strategies_as_text(text: str, strategy: CheckpointStrategy) -> None:
    assert CheckpointStrategy.parse(text) == strategy


@pytest.mark.parametrize(
    "text",
    [
        *("", "|", "never |", "Never", "AfterToolCall()", "after_tool_call:3", "every:3:4"),
        *("every", "every:", "every:0", "every:-1", "every:1.5", "every:x"),
        *("seconds", "seconds:0", "seconds:nan"),
    ],
)
def test_text_that_names_no_strategy_is_an_error_that_lists_them(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Unknown strategy.*every:N.*seconds:N"):
        CheckpointStrategy.parse(text)
