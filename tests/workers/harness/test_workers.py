"""The harness itself, shown with plain Celery tasks: what it can do to a worker, and what it sees."""

from __future__ import annotations

import os
import signal

import pytest
from celery import Celery

from tests.support.ledger import Ledger
from tests.support.tasks.plain import slow, who
from tests.support.wait import until
from tests.support.workers.broker import RedisBroker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool

pytestmark = pytest.mark.usefixtures("celery_app")


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_task_runs_on_each_pool(start_worker: StartWorker, broker: RedisBroker, pool: Pool) -> None:
    worker = start_worker(pool=pool, forked=False)

    assert who.delay().get(timeout=60) in (worker.children() or [worker.pid])
    broker.assert_clean(5)


def test_the_test_app_is_the_current_app(celery_app: Celery, broker: RedisBroker) -> None:
    assert slow.app is celery_app

    slow.delay(1, 0)
    assert broker.queue_length() == 1
    with pytest.raises(AssertionError, match=r"the broker is clean.*\{'celery': 1\}"):
        broker.assert_clean(0.05)


def test_a_worker_that_shuts_down_completes_its_task(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    worker = start_worker()
    result = slow.delay(5, 0.1)
    ledger.wait_for_call("step 0", 5)

    worker.term()

    assert worker.wait_exit(10) == 0
    assert len(ledger.calls(run_id=result.id)) == 5
    broker.assert_clean(0.05)


def test_a_cut_connection_makes_celery_run_a_task_twice_concurrently(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    start_worker(concurrency=2)
    ledger.hold("step 1")
    result = slow.delay(2, 0)
    ledger.wait_for_call("step 1", 5)

    assert broker.cut_connections() > 0

    ledger.wait_for_call("step 1", 10, count=2)
    ledger.let_go()
    ledger.wait_for(lambda note: note.what == "end", 10, count=2)
    with pytest.raises(AssertionError, match="two bodies"):
        ledger.never_two_bodies_at_once(result.id)


def test_a_restarted_server_keeps_its_data_and_workers_reconnect(
    start_worker: StartWorker, broker: RedisBroker
) -> None:
    waiting = who.delay()
    broker.restart()
    assert broker.queue_length() == 1

    worker = start_worker()
    # Polled: a connection that is lost can take with it the notification that Celery waits for.
    until(waiting.ready, 60, "it has a result")
    assert waiting.get(timeout=60)
    broker.restart()

    assert who.delay().get(timeout=60) in worker.children()


def test_a_killed_child_is_not_listed_although_the_worker_has_not_noticed(
    start_worker: StartWorker,
) -> None:
    worker = start_worker(concurrency=2)
    until(lambda: len(worker.children()) == 2, 10, "it has two processes")
    killed, other = worker.children()
    os.kill(worker.pid, signal.SIGSTOP)

    worker.kill_child(killed)
    left = worker.children()
    os.kill(worker.pid, signal.SIGCONT)

    assert left == [other]


def test_a_worker_that_restarts_in_place_can_be_waited_for_again(start_worker: StartWorker) -> None:
    worker = start_worker(pool="solo")
    pid = who.delay().get(timeout=60)

    worker.hup()
    worker.wait_ready()

    assert who.delay().get(timeout=60) == pid
    assert worker.log().count("ready.") == 2


def test_a_dead_worker_can_be_started_again(start_worker: StartWorker) -> None:
    worker = start_worker(pool="solo")
    worker.kill_tree()

    worker.start().wait_ready()

    assert who.delay().get(timeout=60) == worker.pid
