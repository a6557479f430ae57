"""Killed at any write, any number of times: the end is the same, and nothing is paid for twice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_ckpt import AfterLlmResponse, AfterToolCall, CheckpointStrategy, EveryN, Never
from celery_ckpt.records import Step
from celery_ckpt.run.control_flow import found
from tests.support.provider_agents import AGENTS, SHAPES, World
from tests.support.run_host import Attempts

STRATEGIES: dict[str, CheckpointStrategy] = {
    "after tools": AfterToolCall(),
    "after answers": AfterLlmResponse(),
    "every": EveryN(1),
    "every second": EveryN(2),
    "never": Never(),
    "after both": AfterToolCall() | AfterLlmResponse(),
}
#: How the loop ends: by its limit, or by break.
ENDS: dict[str, tuple[int | None, int | None]] = {
    "limit": (3, None),
    "break": (None, 3),
    "no loop": (0, None),
}


class Tried(Attempts):
    """Attempts whose world knows what was recorded."""

    def __init__(self, kind: str, shape: str, strategy: str, end: str) -> None:
        self.world = World(shape)
        super().__init__(AGENTS[kind](self.world, *ENDS[end]), STRATEGIES[strategy])
        record = self.store.record_step

        def noting(step: Step, lease: Any = None, **paid: Any) -> None:
            record(step, lease, **paid)
            self.world.note(step)

        self.store.record_step = noting  # type: ignore[method-assign]

    def outcome(self) -> Any:
        result, run = self.go()
        return result, run.conversation.to_dict(), copy.deepcopy(run.state), run.metadata


def gates(kind: str, shape: str, strategy: str, end: str) -> tuple[int, Any, int]:
    """Return for an uninterrupted run how many points it can be killed at, how it ends, and how
    many calls it makes.
    """
    tried = Tried(kind, shape, strategy, end)
    outcome = tried.outcome()
    return 2 * tried.host.writes, outcome, len(tried.world.calls)


#: Every strategy, every end and both kinds of bodies, but not every combination.
CASES = [
    *(("sync", strategy, "limit") for strategy in STRATEGIES),
    *(("sync", "every", end) for end in ("break", "no loop")),
    *(("async", strategy, "limit") for strategy in ("after tools", "never")),
    ("async", "every second", "break"),
]


@pytest.mark.parametrize(("kind", "strategy", "end"), CASES)
def test_a_run_killed_once_at_any_point_ends_the_same(kind: str, strategy: str, end: str) -> None:
    places, expected, calls = gates(kind, "chat", strategy, end)
    assert places > 10
    for place in range(places):
        tried = Tried(kind, "chat", strategy, end)
        assert tried.killed(place)
        assert tried.outcome() == expected
        # The steps in flight may run twice: at most three tools at the same time.
        assert calls <= len(tried.world.calls) <= calls + 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", AGENTS)
@settings(max_examples=15)
@given(
    places=st.lists(st.integers(0, 80), max_size=12),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    end=st.sampled_from(sorted(ENDS)),
)
def test_a_run_killed_repeatedly_ends_the_same(
    kind: str, shape: str, places: list[int], strategy: str, end: str
) -> None:
    _, expected, _ = gates(kind, shape, strategy, end)
    tried = Tried(kind, shape, strategy, end)
    for place in places:
        if not tried.killed(place):
            break
    assert tried.outcome() == expected
    assert tried.host.changes == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", AGENTS)
@settings(max_examples=10)
@given(stops=st.lists(st.integers(1, 12), max_size=8), strategy=st.sampled_from(sorted(STRATEGIES)))
def test_a_run_handed_off_repeatedly_ends_the_same(
    kind: str, shape: str, stops: list[int], strategy: str
) -> None:
    _, expected, calls = gates(kind, shape, strategy, "limit")
    tried = Tried(kind, shape, strategy, "limit")
    for stop in stops:
        run = tried.attempt()
        tried.host.stop_at_check = stop
        try:
            tried.go(run)
        except BaseException as error:
            if found(error) is None:
                raise
    assert tried.outcome() == expected
    if kind == "sync":
        assert len(tried.world.calls) == calls
