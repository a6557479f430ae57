"""A broker that delivers a message twice, closes connections, does not answer, or is unavailable."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from datetime import datetime, timedelta

import celery
import pytest
from celery import Celery

from celery_ckpt import Agents
from tests.support.ledger import Ledger
from tests.support.servers.valkey import Valkey
from tests.support.tasks.scenarios import count, fair
from tests.support.wait import until
from tests.support.workers.broker import BACKEND_DB, STORE_DB, Broker, RedisBroker
from tests.support.workers.configuration import FAST_REDELIVERY, Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool, Worker
from tests.support.workers.scenario import (
    LEASE,
    ON_RABBITMQ,
    POOLS,
    assert_right_end,
    on_brokers,
    on_rabbitmq,
    on_redis,
    scenario,
)

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]
CELERY = tuple(map(int, celery.__version__.split(".")[:2]))
#: Seconds. Within them even a busy machine renews the visibility of a message.
VISIBILITY = 4


@pytest.fixture
def configuration(configuration: Configuration, other_server: Valkey) -> Configuration:
    """Put the result backend and the store on another server than the broker."""
    return replace(
        configuration,
        backend_url=other_server.url_of(BACKEND_DB),
        store_url=other_server.url_of(STORE_DB),
    )


# After a reconnect, Celery 5.7 changes the prefetch count in a pool thread while the main thread
# reads from the same connection. On RabbitMQ acknowledgements then get stuck, for every kind of task.
@on_brokers(
    "pool",
    on_redis("prefork", "threads", "gevent"),
    on_rabbitmq("prefork"),
    on_rabbitmq("threads", marks=[scenario(worker_enable_prefetch_count_reduction=False)]),
)
def test_a_message_redelivered_after_a_reconnect_does_not_start_a_second_body(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    worker = start_worker(pool=pool, concurrency=2)
    ledger.hold("llm 2")
    result = count.delay(3, 0)
    ledger.wait_for_call("llm 2", 10)

    assert broker.cut_connections() > 0
    until(lambda: worker.log().count(f"[{result.id}] received") == 2, 10, "the message is redelivered")
    if CELERY >= (5, 7):
        # Celery executes the second delivery too. It ends when it finds the lease held.
        until(lambda: f"[{result.id}] ignored" in worker.log(), 10, "the second delivery is ignored")
    ledger.let_go()

    assert_right_end(result, 3, ledger, broker)
    assert len(ledger.bodies(result.id)) == 1


@ON_RABBITMQ
def test_connections_closed_between_two_hand_offs_lose_no_run(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    start_worker()
    ledger.hold("tool 3")
    result = fair.delay(6)
    # By now the pool process has a connection of its own, on which it has published the run twice.
    ledger.wait_for_call("tool 3", 10)

    assert broker.cut_connections() > 1
    ledger.let_go()

    assert_right_end(result, 6, ledger, broker)
    assert {body.how for body in ledger.bodies(result.id)} == {"HandOff", "returned"}


@scenario(transport_options={**FAST_REDELIVERY, "visibility_timeout": VISIBILITY})
@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_takes_longer_than_the_visibility_timeout_is_delivered_once(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    workers = [start_worker(pool=pool, concurrency=2, wait=False) for _ in range(2)]
    ledger.hold("llm 2")
    result = count.delay(2, 0)
    begin = ledger.wait_for_call("llm 2", 20).at
    until(lambda: time.monotonic() - begin > 1.5 * VISIBILITY, 10, "the visibility timeout is over")
    ledger.let_go()

    assert_right_end(result, 2, ledger, broker)
    assert len(ledger.bodies(result.id)) == 1
    assert sum(worker.log().count(f"[{result.id}] received") for worker in workers) == 1


@pytest.mark.parametrize("pool", POOLS)
def test_an_agent_survives_an_outage_of_the_broker(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker, pool: Pool
) -> None:
    worker = start_worker(pool=pool, concurrency=2)
    ledger.hold("llm 2")
    result = count.delay(10)
    ledger.wait_for_call("llm 2", 10)

    broker.server.kill()
    ledger.let_go()
    # A solo worker notices the outage only after its task has ended.
    until(
        lambda: "Connection to broker lost" in worker.log() or ledger.calls("llm 5"),
        10,
        "the worker notices the outage",
    )
    broker.server.start()
    until(lambda: _is_supervised(worker) and result.ready(), 30, "the agent has ended")

    assert_right_end(result, 10, ledger, broker)


def _is_supervised(worker: Worker) -> bool:
    """Start the worker again if it has ended: Celery 5.7 may exit when it loses its broker."""
    if not worker.is_running():
        worker.start()
    return True


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_an_agent_keeps_its_lease_while_the_broker_does_not_answer(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker, pool: Pool
) -> None:
    start_worker(pool=pool)
    ledger.hold("llm 2")
    result = count.delay(3, 0)
    ledger.wait_for_call("llm 2", 10)
    store = Agents(celery_app).store

    def end_of_lease() -> datetime:
        holder = store.holder(result.id)
        assert holder is not None, "the agent has lost its lease"
        return holder.expires_at

    before = end_of_lease()
    broker.server.signal(signal.SIGSTOP)
    until(lambda: end_of_lease() > before + timedelta(seconds=2 * LEASE), 30, "the lease is renewed")
    broker.server.signal(signal.SIGCONT)
    ledger.let_go()

    assert_right_end(result, 3, ledger, broker)
    assert len(ledger.bodies(result.id)) == 1


# On gevent, Celery 5.6 does not notice a second cut while the task is running.
@scenario(worker_cancel_long_running_tasks_on_connection_loss=True, ckpt_max_stalled_attempts=2)
@pytest.mark.parametrize("pool", ["prefork", "gevent"] if CELERY >= (5, 7) else ["prefork"])
def test_attempts_that_celery_cancels_on_reconnect_do_not_count_as_stalled(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    start_worker(pool=pool, concurrency=2)
    ledger.hold("llm 1")
    result = count.delay(2, 0)
    for attempt in range(1, 5):
        ledger.wait_for_call("llm 1", 60, count=attempt)
        assert broker.cut_connections() > 0
    ledger.wait_for_call("llm 1", 60, count=5)
    ledger.let_go()

    assert_right_end(result, 2, ledger, broker, interruptions=4)
    # No attempt, not even the last one that was cancelled, is counted.
    assert [run.stalled for run in Agents(celery_app).runs(result.id)] == [0]
