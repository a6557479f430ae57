"""What a sweep decides about an agent, and when it looks again, on both sides of every limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from celery_ckpt.json_values import microseconds
from celery_ckpt.records import RunStatus
from celery_ckpt.retention.policy import Rules, judge
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, CheckpointSummary, RunSummary

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, INSTANT = timedelta(hours=1), timedelta(microseconds=1)
AN_HOUR = Rules(keep=None, max_age=HOUR.total_seconds(), forget_after=HOUR.total_seconds())
DAY = 86_400.0


def summary(seq: int, age: timedelta, pin: str | None = None) -> CheckpointSummary:
    return CheckpointSummary(f"c{seq}", seq, microseconds(NOW - age), pin)


def seen(*newest_first: CheckpointSummary, ended: timedelta | None = None) -> AgentSnapshot:
    """Return an agent with these checkpoints, whose own task ended ``ended`` ago."""
    if ended is None:
        return AgentSnapshot("agent", "seen", list(newest_first))
    times = NOW - 9 * HOUR, NOW - ended
    run = RunSummary("agent", RunStatus.SUCCEEDED, True, *times)
    marks = list(newest_first)
    return AgentSnapshot("agent", "seen", marks, AgentPolicy(), is_named_by_task=True, last_run=run)


@pytest.mark.parametrize(
    ("ended", "is_deleted"), [(HOUR - INSTANT, False), (HOUR, True), (HOUR + INSTANT, True)]
)
def test_an_agent_is_deleted_when_its_time_has_come(ended: timedelta, is_deleted: bool) -> None:
    assert judge(seen(ended=ended), AN_HOUR, NOW).forget == is_deleted


def test_the_next_sweep_is_due_when_the_next_kept_checkpoint_is_too_old() -> None:
    plan = judge(seen(summary(3, HOUR / 4), summary(2, HOUR / 2), summary(1, 2 * HOUR)), AN_HOUR, NOW)
    assert (plan.remove, plan.again) == (["c1"], HOUR.total_seconds() / 2)


def test_pinned_and_latest_checkpoints_make_no_further_sweep_due() -> None:
    plan = judge(seen(summary(2, 3 * HOUR), summary(1, 2 * HOUR, pin="mine")), AN_HOUR, NOW)
    assert (plan.remove, plan.again) == ([], None)


def test_the_next_sweep_is_due_neither_immediately_nor_at_the_end_of_time() -> None:
    at_the_limit = seen(summary(2, INSTANT), summary(1, HOUR))
    assert judge(at_the_limit, AN_HOUR, NOW).again == 1
    for_ages = judge(at_the_limit, Rules(keep=None, max_age=1e11), NOW).again
    assert for_ages is not None
    assert 5 * 365 * DAY < for_ages < 10 * 365 * DAY


def test_an_unreadable_agent_is_due_again_in_a_day() -> None:
    plan = judge(AgentSnapshot("agent", "?", damage="spoilt"), AN_HOUR, NOW)
    assert (plan.remove, plan.forget, plan.again) == ([], False, DAY)
