"""Several runs of one agent are executed one after the other. A blocked run occupies no worker."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_ckpt import Agents, open_store
from tests.support.ledger import Ledger, names
from tests.support.tasks.scenarios import count, talk
from tests.support.wait import until
from tests.support.workers.broker import Broker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool
from tests.support.workers.scenario import (
    on_brokers,
    on_rabbitmq,
    on_redis,
    scenario,
    several_workers,
    uninterrupted,
)

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]
AGENT = "user-42"


def _said(*names_and_iterations: tuple[str, int]) -> list[str]:
    return [
        f"{name} {iteration}"
        for name, iterations in names_and_iterations
        for iteration in range(1, iterations + 1)
    ]


def _sent(name: str, iterations: int, **options: bool) -> AsyncResult:
    return talk.apply_async((name, iterations), options, agent_id=AGENT)


@on_brokers("concurrency", on_redis(1, 4), on_rabbitmq(1))
def test_a_second_run_is_blocked_during_the_retry_and_the_hand_offs_of_the_first(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: Broker, concurrency: int
) -> None:
    start_worker(concurrency=concurrency)
    first = _sent("first", 3, fails_once=True)
    ledger.wait_for_call("first 1", 10)
    second = _sent("second", 2)
    # While the first run is between two attempts and the second is blocked, the only slot is free.
    other = count.delay(1, 0)

    assert other.get(timeout=60) == uninterrupted(1)
    assert not second.ready()
    assert second.get(timeout=60) == _said(("first", 3), ("second", 2))
    assert first.get(timeout=60) == _said(("first", 3))
    assert names(ledger.calls(run_id=AGENT)) == _said(("first", 3), ("second", 2))
    ledger.never_two_bodies_at_once(AGENT)
    assert Agents(celery_app).status(AGENT).blocked == 0
    broker.assert_clean(10)


def test_runs_of_one_agent_start_in_the_order_in_which_they_were_sent(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: Broker
) -> None:
    several_workers(2, start_worker, concurrency=2)
    ledger.hold("one 1")
    runs = [_sent("one", 2)]
    ledger.wait_for_call("one 1", 10)
    runs += [_sent(name, 2) for name in ("two", "three")]
    ledger.let_go()

    history = runs[-1].get(timeout=60)

    assert history == _said(("one", 2), ("two", 2), ("three", 2))
    assert [len(run.get(timeout=60)) for run in runs] == [2, 4, 6]
    assert names(ledger.calls(run_id=AGENT)) == history
    ledger.never_two_bodies_at_once(AGENT)
    assert Agents(celery_app).status(AGENT).blocked == 0
    broker.assert_clean(10)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_blocked_run_is_not_lost_with_the_worker_of_the_run_before_it(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    doomed = start_worker(pool=pool, concurrency=2)
    ledger.hold("llm 2")
    first = count.apply_async((4,), agent_id=AGENT)
    ledger.wait_for_call("llm 2", 10)
    second = _sent("second", 1)
    until(lambda: Agents(celery_app).status(AGENT).blocked == 1, 10, "the second run is blocked")

    doomed.kill_tree()
    ledger.let_go()
    start_worker(pool=pool)

    assert first.get(timeout=60) == uninterrupted(4)
    assert second.get(timeout=60)[-1] == "second 1"
    ledger.never_two_bodies_at_once(first.id)
    assert ledger.bodies(first.id)[-1].end < ledger.bodies(AGENT)[0].begin
    broker.assert_clean(10)


def test_a_run_that_was_sent_by_task_name_waits_for_its_turn(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: Broker
) -> None:
    start_worker(concurrency=2)
    ledger.hold("first 1")
    first = _sent("first", 3)
    ledger.wait_for_call("first 1", 10)
    second = celery_app.send_task(talk.name, ("second", 1), headers={"ckpt_agent_id": AGENT})
    until(lambda: Agents(celery_app).status(AGENT).blocked == 1, 10, "the second run is blocked")
    ledger.let_go()

    assert second.get(timeout=60) == _said(("first", 3), ("second", 1))
    assert first.get(timeout=60) == _said(("first", 3))
    broker.assert_clean(10)


def test_a_run_that_was_sent_by_task_name_is_not_lost_while_another_owner_holds_the_lease(
    start_worker: StartWorker, celery_app: Celery, configuration: Configuration
) -> None:
    worker = start_worker()
    with open_store(configuration.store_url) as store:
        lease = store.acquire(AGENT, "another owner", 60)
        sent = celery_app.send_task(talk.name, ("only", 1), headers={"ckpt_agent_id": AGENT})
        until(lambda: f"{sent.id}] ignored" in worker.log(), 10, "the run finds the lease held")
        store.release(lease)

        assert sent.get(timeout=60) == _said(("only", 1))
