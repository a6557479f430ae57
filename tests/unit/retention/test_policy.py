"""Which checkpoints may be removed, on both sides of every limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ckpt import RetentionPolicy
from celery_ckpt.records import CheckpointInfo
from celery_ckpt.retention.policy import Rules
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, INSTANT = timedelta(hours=1), timedelta(microseconds=1)


def info(seq: int, hours: float = 0) -> CheckpointInfo:
    return CheckpointInfo(
        id=f"c{seq}", seq=seq, iteration=seq, messages=1, created_at=NOW - hours * HOUR
    )


def expired(policy: RetentionPolicy, *history: CheckpointInfo, live: bool = True) -> list[int]:
    return [found.seq for found in policy.expired(history, NOW, live=live)]


THREE = (info(1), info(2), info(3))


@pytest.mark.parametrize(
    ("keep", "removed"), [(None, []), (4, []), (3, []), (2, [1]), (1, [2, 1]), (0, [2, 1])]
)
def test_all_but_the_newest_n_can_be_removed(keep: int | None, removed: list[int]) -> None:
    assert expired(RetentionPolicy(keep=keep), *THREE) == removed


@pytest.mark.parametrize(
    ("max_age", "removed"), [(HOUR - INSTANT, [1]), (HOUR, []), (HOUR + INSTANT, [])], ids=str
)
def test_checkpoints_older_than_the_maximum_can_be_removed(
    max_age: timedelta, removed: list[int]
) -> None:
    assert expired(RetentionPolicy(keep=None, max_age=max_age), info(1, 1), info(2)) == removed


def test_either_limit_is_enough() -> None:
    policy = RetentionPolicy(keep=3, max_age=10 * HOUR)
    history = [info(1, 9), info(2, 8), info(3, 11), info(4, 1)]
    assert expired(policy, *history) == [3, 1]


def test_the_latest_checkpoint_of_a_live_agent_is_kept_whatever_the_limits() -> None:
    policy = RetentionPolicy(keep=0, max_age=HOUR)
    assert expired(policy, info(1, 5), info(2, 5)) == [1]


def test_the_latest_checkpoint_of_an_ended_agent_can_be_removed() -> None:
    assert expired(RetentionPolicy(keep=0), *THREE, live=False) == [3, 2, 1]
    assert expired(RetentionPolicy(keep=None, max_age=HOUR), info(1, 2), live=False) == [1]


def test_the_order_is_that_of_the_store_not_of_the_clock() -> None:
    assert expired(RetentionPolicy(keep=1), info(2, 5), info(1, 0)) == [1]


def test_a_clock_set_back_makes_no_checkpoint_old() -> None:
    assert expired(RetentionPolicy(keep=None, max_age=HOUR), info(1, -5), info(2)) == []


def test_a_limit_beyond_the_end_of_time_never_applies() -> None:
    """This includes an unreadable record: its date is unknown, so it is never old."""
    unknown = info(1).model_copy(update={"created_at": datetime.max.replace(tzinfo=UTC)})
    for policy, history in [
        (RetentionPolicy(keep=None, max_age=timedelta.max), [info(1, 5), info(2)]),
        (RetentionPolicy(keep=None, max_age=HOUR), [unknown, info(2)]),
    ]:
        assert expired(policy, *history) == []
        assert policy.next_expiry(history) == datetime.max.replace(tzinfo=UTC)
    snapshot = AgentSnapshot("agent", policy=AgentPolicy(max_age=1e15))
    assert Rules().policy_of(snapshot).max_age == timedelta.max


@pytest.mark.parametrize("live", [True, False])
def test_an_agent_without_checkpoints_has_nothing_to_remove(live: bool) -> None:
    assert expired(RetentionPolicy(keep=0), live=live) == []


def test_twenty_checkpoints_are_kept_by_default() -> None:
    assert RetentionPolicy() == RetentionPolicy(keep=20, max_age=None)


@pytest.mark.parametrize(
    "limits", [{"keep": -1}, {"max_age": timedelta(0)}, {"max_age": timedelta(-1)}]
)
def test_invalid_limits_are_refused(limits: dict[str, int | timedelta]) -> None:
    with pytest.raises(ValueError, match=f"RetentionPolicy.{next(iter(limits))}"):
        RetentionPolicy(**limits)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 20)), unique_by=lambda pair: pair[0]),
    st.none() | st.integers(0, 10),
    st.none() | st.integers(1, 20),
    st.booleans(),
)
def test_every_kept_checkpoint_is_within_the_limits_or_the_latest(
    history: list[tuple[int, float]], keep: int | None, max_hours: int | None, live: bool
) -> None:
    max_age = None if max_hours is None else max_hours * HOUR
    infos = [info(*pair) for pair in history]
    removed = expired(RetentionPolicy(keep, max_age), *infos, live=live)
    stay = sorted((found for found in infos if found.seq not in removed), key=lambda i: -i.seq)
    assert removed == sorted(removed, reverse=True)
    for found in stay[1:] if live else stay:
        assert keep is None or sum(other.seq > found.seq for other in infos) < keep
        assert max_age is None or NOW - found.created_at <= max_age
