"""Revocation and time limits: a run that was ended on purpose stays ended. No watchdog requeues it."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.exceptions import TimeLimitExceeded
from celery.result import AsyncResult

from celery_ckpt import Agents
from celery_ckpt.errors import RunStalled
from tests.support.ledger import Ledger
from tests.support.tasks.retries import outcome, slow_step, stubborn
from tests.support.wait import until
from tests.support.workers.broker import Broker
from tests.support.workers.fixtures import StartWorker

#: Short, because tests wait until it has expired, but longer than the pauses of a busy machine with two
#: cores.
LEASE = 2.5
pytestmark = pytest.mark.configured(
    include=("tests.support.tasks.retries",), conf={"ckpt_lease_ttl": LEASE}
)

#: A unique name: the parent must find it.
NAME = "named"


def test_a_running_agent_that_is_revoked_stays_revoked(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    start_worker()
    ledger.hold("sleep 2")
    result = slow_step.apply_async((2,), agent_id=NAME)
    ledger.wait_for_call("sleep 2", 10)

    result.revoke(terminate=True)

    until(lambda: outcome(result) == "REVOKED", 10, "it is revoked")
    stays_ended(celery_app, ledger, broker, result, "cancelled")
    assert outcome(result) == "REVOKED"


def test_an_agent_that_exceeds_its_hard_time_limit_fails_once(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    start_worker()
    ledger.hold("sleep 1")
    result = slow_step.apply_async((2,), agent_id=NAME, time_limit=1)

    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=60)
    stays_ended(celery_app, ledger, broker, result, "failed")
    assert outcome(result) == "FAILURE"
    error = Agents(celery_app).status(NAME).error
    assert error == "TimeLimitExceeded: TimeLimitExceeded(1,)"


def stays_ended(
    app: Celery,
    ledger: Ledger,
    broker: Broker,
    result: AsyncResult,
    status: str,
) -> None:
    """Assert that the end is recorded, nothing is left to do, and another agent of that worker runs."""
    agents = Agents(app)
    until(lambda: agents.status(NAME).status == status, 10, f"it is {status}")
    broker.assert_clean(5)
    # Longer than its lease, and longer than a watchdog waits for an interrupted run.
    assert stubborn.delay(LEASE + 2).get(timeout=60) == "done"
    assert len(ledger.bodies(result.id)) == 1
    assert agents.status(NAME).status == status
    # It is forgotten this long after its end, not after it was sent.
    assert agents.runs(NAME)[0].ended_at is not None


def test_an_agent_that_is_revoked_before_its_start_never_starts(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker(pool="threads")
    ledger.hold("working")
    blocking = stubborn.delay()
    ledger.wait_for_call("working", 10)
    result = slow_step.apply_async((1,), agent_id="too early")

    result.revoke()
    until(lambda: f"flagged as revoked: {result.id}" in worker.log(), 10, "the worker knows")
    ledger.let_go()

    assert blocking.get(timeout=60) == "done"
    until(lambda: outcome(result) == "REVOKED", 10, "it is revoked")
    agents = Agents(celery_app)
    until(lambda: agents.status("too early").status == "cancelled", 5, "it is recorded")
    assert ledger.bodies(result.id) == []
    broker.assert_clean(5)
    assert slow_step.apply_async((1,), agent_id="too early").get(timeout=60) == 1


def test_a_soft_time_limit_is_retried_like_any_error(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger
) -> None:
    start_worker()
    ledger.hold("sleep 2")
    result = slow_step.apply_async((2,), soft_time_limit=2)
    _interrupted(ledger, 1)
    ledger.let_go()

    assert result.get(timeout=60) == 2
    assert [note["retries"] for note in ledger.notes(result.id, "begin")] == [0, 1]
    assert ledger.bodies(result.id)[0].how == "SoftTimeLimitExceeded"
    assert ledger.repeated(result.id) == {(result.id, "sleep 2"): 2}


def _interrupted(ledger: Ledger, times: int) -> None:
    ledger.wait_for(lambda note: note.what == "end", 10, "the end of a body", times)


@pytest.mark.configured(conf={"ckpt_lease_ttl": LEASE, "ckpt_hand_off_on_time_limit": True})
def test_a_soft_time_limit_hands_off_if_configured(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger
) -> None:
    start_worker()
    result = slow_step.apply_async((3,), soft_time_limit=2)
    for number in (2, 3):
        ledger.hold(f"sleep {number}")
        _interrupted(ledger, number - 1)
    ledger.let_go()

    assert result.get(timeout=60) == 3
    assert [note["retries"] for note in ledger.notes(result.id, "begin")] == [0, 0, 0]
    assert ledger.repeated(result.id) == {(result.id, "sleep 2"): 2, (result.id, "sleep 3"): 2}


@pytest.mark.configured(
    conf={
        "ckpt_lease_ttl": LEASE,
        "ckpt_hand_off_on_time_limit": True,
        "ckpt_max_stalled_attempts": 2,
    }
)
def test_a_call_that_is_too_long_for_the_time_limit_is_not_repeated_forever(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    start_worker()
    ledger.hold("sleep 2")
    result = slow_step.apply_async((2,), soft_time_limit=1)

    with pytest.raises(RunStalled, match="2 attempts"):
        result.get(timeout=60)
    # The first run has recorded its first call, and is not one of them.
    assert ledger.repeated(result.id) == {(result.id, "sleep 2"): 3}
    broker.assert_clean(5)
