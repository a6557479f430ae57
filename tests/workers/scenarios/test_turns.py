"""Several runs of one agent are executed one after the other. A blocked run occupies no worker."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_ckpt import Agents, open_store
from tests.support.ledger import Ledger, names
from tests.support.tasks.scenarios import count, talk
from tests.support.wait import until
from tests.support.workers.broker import Broker, RedisBroker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import FAST, Pool
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


@scenario(worker_prefetch_multiplier=4)
def test_runs_that_a_busy_worker_has_prefetched_are_executed_in_order(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    start_worker(pool="threads", concurrency=1)
    ledger.hold("llm 1")
    busy = count.delay(1, 0)
    ledger.wait_for_call("llm 1", 10)
    runs = [_sent(f"run {number}", 1) for number in range(3)]
    is_fetched = lambda: (broker.queue_length(), len(broker.unacked())) == (0, 4)  # noqa: E731
    until(is_fetched, 10, "the busy worker has prefetched them")
    runs += [_sent(f"run {number}", 1) for number in range(3, 8)]
    start_worker(pool="threads", concurrency=2)

    history = runs[-1].get(timeout=60)
    ledger.let_go()

    assert history == [f"run {number} 1" for number in range(8)]
    assert [len(run.get(timeout=60)) for run in runs] == list(range(1, 9))
    assert busy.get(timeout=60) == uninterrupted(1)
    # The prefetched messages are delivered too, and start nothing.
    broker.assert_clean(10)
    assert names(ledger.calls(run_id=AGENT)) == history
    ledger.never_two_bodies_at_once(AGENT)


def test_a_run_with_an_eta_of_a_day_blocks_nobody(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger
) -> None:
    start_worker(concurrency=2)
    delayed = talk.apply_async(("delayed", 1), agent_id=AGENT, countdown=86_400)
    first, second = _sent("first", 2), _sent("second", 1)

    assert second.get(timeout=60) == _said(("first", 2), ("second", 1))
    assert first.get(timeout=60) == _said(("first", 2))
    agents = Agents(celery_app)
    until(lambda: agents.store.activity(AGENT).count == 1, 10, "only the delayed run is open")
    assert agents.cancel(AGENT)
    assert agents.runs(AGENT)[0].status == "cancelled"
    assert delayed.state == "REVOKED"


def test_a_lost_message_delays_the_other_runs_only_once(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    first = _sent("first", 1)
    with broker.server.client(db=broker.db) as client:
        assert client.delete("celery") == 1
    others = [_sent(name, 1) for name in ("second", "third")]
    worker = start_worker(concurrency=2)

    assert others[-1].get(timeout=60) == _said(("first", 1), ("second", 1), ("third", 1))
    assert first.get(timeout=60) == _said(("first", 1))
    assert "Run was requeued" not in worker.log(), "no run had to wait for the watchdog"
    broker.assert_clean(10)


@scenario(ckpt_lease_ttl=1)
def test_a_run_in_a_queue_without_a_worker_is_passed_over(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: RedisBroker
) -> None:
    unrouted = talk.apply_async(("unrouted", 1), agent_id=AGENT, queue="nobody")
    others = [_sent(name, 1) for name in ("second", "third")]
    worker = start_worker(concurrency=2)

    assert others[-1].get(timeout=60) == _said(("second", 1), ("third", 1))
    assert worker.log().count("Run was passed over, because no worker has begun it") == 1
    assert _sent("fourth", 1).get(timeout=60)[-1] == "fourth 1", "it blocks nobody any more"
    start_worker(options=[*FAST, "-Q", "nobody"])
    assert unrouted.get(timeout=60)[-1] == "unrouted 1"
    assert _sent("last", 1).get(timeout=60)[-2:] == _said(("unrouted", 1), ("last", 1))
    assert len(names(ledger.calls(run_id=AGENT))) == 5
    broker.assert_clean(10)
