"""How often watchdogs ask for due agents."""

from __future__ import annotations

import pytest

from celery_ckpt.runtime.worker.poll_interval import poll_interval, randomized


@pytest.mark.parametrize("watchdogs", [1, 2, 5, 8, 9, 16, 17, 30, 80, 100, 500, 5000])
def test_a_due_agent_is_claimed_within_two_seconds(watchdogs: int) -> None:
    interval = poll_interval(watchdogs)
    if watchdogs <= 12:
        assert max(randomized(interval) for _ in range(1000)) <= 2
    else:
        # Each asks at a random time of its interval.
        assert (1 - min(1, 2 / interval)) ** watchdogs < 1e-6


@pytest.mark.parametrize("watchdogs", [1, 2, 5, 8, 16, 80])
def test_all_watchdogs_together_ask_at_most_eight_times_a_second(watchdogs: int) -> None:
    assert watchdogs / poll_interval(watchdogs) <= 8


def test_five_hundred_watchdogs_ask_fifty_times_a_second() -> None:
    assert 500 / poll_interval(500) == 50
