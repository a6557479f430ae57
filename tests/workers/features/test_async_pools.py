"""Async bodies on pools of all kinds: how long they may take, and how they are interrupted."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_ckpt import Agents
from celery_ckpt.errors import ConfigurationError
from tests.support.ledger import Ledger
from tests.support.tasks.async_agents import (
    in_a_group,
    lenient,
    slow_async,
    which_loop,
)
from tests.support.wait import until
from tests.support.workers.broker import Broker
from tests.support.workers.fixtures import StartWorker

pytestmark = [
    pytest.mark.configured(
        include=("tests.support.tasks.async_agents",),
        conf={"ckpt_lease_ttl": 10},
    ),
    pytest.mark.usefixtures("celery_app"),
]


def test_each_child_of_a_pool_has_a_persistent_loop(start_worker: StartWorker) -> None:
    worker = start_worker(concurrency=1)

    seen = [which_loop.delay().get(timeout=60) for _ in range(3)]

    assert len({tuple(one) for one in seen}) == 1
    assert [seen[0][0]] == worker.children()


def test_a_hand_off_inside_a_task_group_repeats_no_call(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    first = start_worker(pool="threads")
    ledger.hold("work 4")
    result = in_a_group.delay()
    ledger.wait_for_call("work 4", 10)

    first.term()
    assert first.wait_exit(10) == 0
    ledger.let_go()
    start_worker(pool="threads")

    assert result.get(timeout=60) == sum(range(2, 14))
    assert ledger.repeated(result.id) == {}
    assert len(ledger.bodies(result.id)) == 2
    broker.assert_clean(5)


@pytest.mark.parametrize(("how", "result"), [("returns", "second"), ("trips", "SECOND")])
def test_a_hand_off_that_a_body_treats_as_a_result_still_takes_place(
    start_worker: StartWorker, ledger: Ledger, how: str, result: str
) -> None:
    first = start_worker(pool="threads")
    ledger.hold("first")
    sent = lenient.delay(how)
    ledger.wait_for_call("first", 10)

    first.term()
    assert first.wait_exit(10) == 0
    ledger.let_go()
    start_worker(pool="threads")

    assert sent.get(timeout=60)[0] == result
    assert ledger.repeated(sent.id) == {}
    assert [note["retries"] for note in ledger.notes(sent.id, "begin")] == [0, 0]


@pytest.mark.parametrize(
    "hands_off",
    [
        pytest.param(
            True,
            marks=pytest.mark.configured(
                conf={"ckpt_lease_ttl": 10, "ckpt_hand_off_on_time_limit": True}
            ),
        ),
        False,
    ],
)
def test_a_soft_time_limit_cancels_the_body_and_the_next_attempt_waits_for_its_end(
    start_worker: StartWorker, ledger: Ledger, hands_off: bool
) -> None:
    start_worker()
    ledger.hold("sleep 2")
    result = slow_async.apply_async((2,), soft_time_limit=2)
    ledger.wait_for(lambda note: note.what == "end", 10)
    ledger.let_go()

    assert result.get(timeout=60) == 2
    assert [note["retries"] for note in ledger.notes(result.id, "begin")] == [0, 0 if hands_off else 1]
    assert ledger.repeated(result.id) == {(result.id, "sleep 2"): 2}
    assert ledger.notes(result.id, "cleaned up")
    ledger.never_two_bodies_at_once(result.id)


def test_a_revocation_cancels_the_body(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger
) -> None:
    start_worker()
    ledger.hold("sleep 2")
    result = slow_async.delay(2)
    ledger.wait_for_call("sleep 2", 10)

    result.revoke(terminate=True)

    ledger.wait_for(lambda note: note.what == "cleaned up", 10)
    until(lambda: Agents(celery_app).status(result.id).status == "cancelled", 10, "it is recorded")
    assert len(ledger.bodies(result.id)) == 1


def test_the_error_with_a_gevent_pool_says_what_to_do(start_worker: StartWorker) -> None:
    start_worker(pool="gevent")

    with pytest.raises(ConfigurationError, match="Use the prefork, threads or solo pool"):
        which_loop.delay().get(timeout=60)
