"""Retries by Celery, counted by the store, without repeated calls."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ckpt import Agents, CheckpointStore
from celery_ckpt.runtime.broker.publisher import publish
from celery_ckpt.runtime.process.context import AppContext
from tests.support.ledger import names
from tests.support.tasks.retries import (
    Broken,
    async_by_default,
    async_with_other_arguments,
    at_once,
    by_default,
    much_later,
    not_at_all,
    outcome,
    with_other_arguments,
)
from tests.support.wait import until
from tests.support.workers.site import Site

SITE = {"include": ("tests.support.tasks.retries",), "conf": {"ckpt_lease_ttl": 10}}


@pytest.mark.parametrize("task", [by_default, async_by_default], ids=["sync", "async"])
def test_a_failed_agent_is_retried_after_a_delay(site: Site, task: Any) -> None:
    result = task.delay(1)

    assert result.get(timeout=60) == 2
    attempts = site.ledger.calls("attempt", result.id)
    assert [(call["retries"], call["attempt"]) for call in attempts] == [(0, 1), (1, 2)]
    assert site.ledger.repeated(result.id) == {(result.id, "attempt"): 2}, "the step is not repeated"


def test_agents_are_retried_with_backoff_by_default() -> None:
    assert (by_default.retry_backoff, by_default.retry_jitter) == (True, True)
    assert (at_once.retry_backoff, not_at_all.autoretry_for) == (False, ())


def test_an_agent_without_autoretry_fails_immediately(site: Site) -> None:
    result = not_at_all.delay(1)

    with pytest.raises(Broken, match="attempt 1"):
        result.get(timeout=60)
    assert len(site.ledger.calls("attempt", result.id)) == 1


def test_hand_offs_use_no_retries_and_retries_resume_in_the_same_iteration(site: Site) -> None:
    result = at_once.delay(3)

    assert result.get(timeout=60) == 5
    attempts = site.ledger.calls("attempt", result.id)
    assert [(call["retries"], call["attempt"]) for call in attempts] == [(0, 2), (1, 3), (2, 4)]
    made = [name for name in names(site.ledger.calls(run_id=result.id)) if name != "attempt"]
    assert made == ["iteration 1", "iteration 2", "iteration 3"]


def test_an_agent_fails_after_the_last_retry(site: Site) -> None:
    result = at_once.delay(9)

    with pytest.raises(Broken, match="attempt 4"):
        result.get(timeout=60)
    assert result.state == "FAILURE"
    until(lambda: Agents(site.app).status(result.id).status == "failed", 5, "it is recorded")
    status = Agents(site.app).status(result.id)
    assert (status.retries, status.attempts, status.error) == (2, 4, "Broken: attempt 4")
    assert len(site.ledger.calls("attempt", result.id)) == 3


def test_a_manually_resumed_run_has_all_its_retries_again(site: Site) -> None:
    result = at_once.delay(5)
    with pytest.raises(Broken, match="attempt 4"):
        result.get(timeout=60)

    resumed = Agents(site.app).resume(result.id)

    assert resumed.get(timeout=60) == 7
    attempts = site.ledger.calls("attempt", result.id)
    assert [call["retries"] for call in attempts] == [0, 1, 2, 0, 1]


def test_an_old_copy_of_the_message_does_not_restore_a_used_retry(site: Site) -> None:
    store = AppContext.of(site.app).store
    again = much_later.delay(9)
    until(lambda: outcome(again) == "RETRY", 10, "it was attempted once, and a retry is pending")
    publish(site.app, copy_of(store, again.id, retries=0, eta=None), has_begun=True)

    site.ledger.wait_for_call("attempt", 10, again.id, count=2)
    attempts = site.ledger.calls("attempt", again.id)
    assert [(call["retries"], call["attempt"]) for call in attempts] == [(0, 1), (1, 2)]


def copy_of(store: CheckpointStore, run_id: str, **headers: Any) -> dict[str, Any]:
    """Return the message of a run as it was sent, or with other headers."""
    run = store.run(run_id, run_id)
    assert run is not None
    return {**run.envelope, "headers": {**run.envelope["headers"], **headers}}


@pytest.mark.parametrize(
    "task", [with_other_arguments, async_with_other_arguments], ids=["sync", "async"]
)
@pytest.mark.parametrize("agent_id", [None, "tireless"])
def test_a_body_can_retry_with_other_arguments(site: Site, task: Any, agent_id: str | None) -> None:
    name = agent_id and f"{agent_id} {task.name}"
    result = task.apply_async((1,), agent_id=name)

    assert result.get(timeout=60) == 3
    calls = site.ledger.calls(run_id=result.id)
    assert [(call["name"], call["retries"]) for call in calls] == [
        ("with 1", 0),
        ("with 2", 1),
        ("with 3", 2),
    ]
    assert Agents(site.app).status(name or result.id).run_id == result.id
