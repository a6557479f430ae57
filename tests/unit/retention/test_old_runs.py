"""Which run records may be deleted, and when a sweep looks for them, on both sides of every limit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.retention.policy import Rules, judge, old_runs
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, PrunePlan, RunSummary

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, INSTANT = timedelta(hours=1), timedelta(microseconds=1)
RULES = Rules(keep=None, forget_after=HOUR.total_seconds())


def run(run_id: str, ago: timedelta, **fields: Any) -> RunRecord:
    facts = {"status": RunStatus.SUCCEEDED, "delivered": True, "ended_at": NOW - ago, **fields}
    return RunRecord(agent_id="agent", run_id=run_id, created_at=NOW - 9 * HOUR, **facts)


def earliest_end(*runs: RunRecord) -> datetime | None:
    deletable = old_runs("agent", runs, datetime.max.replace(tzinfo=UTC))
    return min((one.counts_as_ended_at for one in deletable), default=None)


def snapshot(
    *runs: RunRecord, policy: AgentPolicy | None = None, is_busy: bool = False
) -> AgentSnapshot:
    return AgentSnapshot(
        "agent",
        "seen",
        policy=policy or AgentPolicy(),
        is_busy=is_busy,
        last_run=RunSummary.of(runs[-1]),
        earliest_end=earliest_end(*runs),
    )


def plan_for(*runs: RunRecord, rules: Rules = RULES, now: datetime = NOW, **facts: Any) -> PrunePlan:
    return judge(snapshot(*runs, **facts), rules, now)


LAST = run("last", timedelta(0))


@pytest.mark.parametrize("ago", [HOUR - INSTANT, HOUR, HOUR + INSTANT], ids=str)
def test_runs_that_ended_at_or_before_the_limit_are_deleted(ago: timedelta) -> None:
    plan = plan_for(run("old", ago), LAST)
    before = plan.runs_before
    removed = [] if before is None else old_runs("agent", [run("old", ago), LAST], before)
    assert [one.run_id for one in removed] == (["old"] if ago >= HOUR else [])
    assert before is None or before == NOW - HOUR


def test_open_runs_the_last_run_and_the_run_that_names_the_agent_are_kept() -> None:
    runs = [
        run("agent", 9 * HOUR),
        run("old", 9 * HOUR),
        run("not delivered", 9 * HOUR, delivered=False),
        run("at work", 9 * HOUR, status=RunStatus.RUNNING),
        run("no end", 9 * HOUR, ended_at=None),
        run("last", 9 * HOUR),
    ]
    assert [one.run_id for one in old_runs("agent", runs, NOW - 9 * HOUR)] == ["old", "no end"]
    assert earliest_end(*runs) == NOW - 9 * HOUR
    assert earliest_end(runs[0], *runs[2:4], runs[5]) is None
    assert old_runs("agent", [], NOW) == []


def test_the_limit_of_an_agent_overrides_the_setting() -> None:
    old = run("old", HOUR)
    assert plan_for(old, LAST, policy=AgentPolicy(forget_after=3601.0)).runs_before is None
    assert plan_for(old, LAST, rules=Rules(forget_after=3601.0)).runs_before is None
    own = plan_for(old, LAST, policy=AgentPolicy(forget_after=3599.0), rules=Rules(forget_after=9e9))
    assert own.runs_before == NOW - timedelta(seconds=3599)


@pytest.mark.parametrize("is_busy", [True, False])
def test_without_a_limit_no_run_is_ever_deleted(is_busy: bool) -> None:
    plan = plan_for(run("old", 999 * HOUR), LAST, rules=Rules(), is_busy=is_busy)
    assert (plan.runs_before, plan.again) == (None, None)


@pytest.mark.parametrize("limit", [9e10, 9e15, float("inf")])
def test_a_very_long_limit_is_still_a_limit(limit: float) -> None:
    rules = Rules(forget_after=limit)
    plan = plan_for(run("old", HOUR), LAST, rules=rules)
    assert (plan.runs_before, plan.again) == (None, 3e8)
    whole = replace(snapshot(LAST), is_named_by_task=True)
    assert not judge(whole, rules, NOW).forget


def test_a_run_dated_at_the_end_of_time_does_not_expire() -> None:
    last = replace(snapshot(LAST), is_named_by_task=True)
    assert last.last_run is not None
    unknown = last.last_run._replace(ended_at=None, created_at=datetime.max.replace(tzinfo=UTC))
    assert not judge(replace(last, last_run=unknown), RULES, NOW).forget


def test_an_agent_with_one_run_needs_no_further_sweep() -> None:
    plan = plan_for(LAST)
    assert (plan.runs_before, plan.again) == (None, None)


def test_the_next_sweep_is_due_when_the_next_run_is_old_enough() -> None:
    assert plan_for(run("young", HOUR / 4), LAST).again == 0.75 * 3600
    # What exists besides the run that is deleted now is not known. All are old when the last one is.
    assert plan_for(run("old", 2 * HOUR), LAST).again == 3600
    assert plan_for(run("old", 2 * HOUR), run("last", HOUR / 4), is_busy=True).again == 0.75 * 3600


def test_no_further_sweep_is_due_for_runs_that_are_already_old_enough() -> None:
    runs = run("old", 3 * HOUR), run("last", 2 * HOUR)
    assert (plan_for(*runs).runs_before, plan_for(*runs).again) == (NOW - HOUR, None)
    at_work = run("last", HOUR, status=RunStatus.RUNNING, ended_at=None)
    assert plan_for(run("old", 3 * HOUR), at_work, is_busy=True).again is None


def test_runs_of_unknown_age_are_examined() -> None:
    unknown = replace(snapshot(LAST), earliest_end=datetime.min.replace(tzinfo=UTC))
    assert judge(unknown, RULES, NOW).runs_before == NOW - HOUR


def test_an_agent_deleted_as_a_whole_loses_its_runs_with_it() -> None:
    whole = replace(snapshot(run("old", 3 * HOUR), run("last", 2 * HOUR)), is_named_by_task=True)
    plan = judge(whole, RULES, NOW)
    assert (plan.forget, plan.runs_before) == (True, None)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.integers(0, 300))
def test_every_idle_agent_has_one_run_left_after_a_few_sweeps(ago: list[int], last: int) -> None:
    """Whenever the runs ended: each check comes later than the one before, and deletes something."""
    minutes = [timedelta(minutes=each) for each in [*sorted(ago, reverse=True), min(last, min(ago))]]
    runs = [run(str(number), each) for number, each in enumerate(minutes)]
    now, looks = NOW, 0
    while True:
        plan = plan_for(*runs, now=now)
        if plan.runs_before is not None:
            removed = old_runs("agent", runs, plan.runs_before)
            assert removed
            runs = [one for one in runs if one not in removed]
        if plan.again is None:
            break
        now, looks = now + timedelta(seconds=plan.again), looks + 1
    assert [one.run_id for one in runs] == [str(len(ago))]
    assert looks <= 2
