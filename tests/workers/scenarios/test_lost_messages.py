"""Messages that the broker has lost, and messages that only wait in a long queue."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_ckpt import open_store
from tests.support.ledger import Ledger
from tests.support.tasks.scenarios import count
from tests.support.wait import until
from tests.support.workers.broker import RedisBroker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import FAST
from tests.support.workers.scenario import assert_right_end, scenario

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]


def test_a_lost_message_is_published_again_but_not_one_that_waits_in_a_long_queue(
    start_worker: StartWorker, celery_app: Celery, broker: RedisBroker
) -> None:
    # The watchdog of this worker looks at all agents. The worker consumes neither of the queues.
    start_worker(pool="solo", options=(*FAST, "-Q", "another"))
    waiting = count.apply_async((1,), queue="long")
    lost = count.apply_async((1,), queue="empty")
    with (
        broker.server.client(db=broker.db) as client,
        open_store(celery_app.conf.ckpt_store_url) as store,
    ):
        store.schedule(waiting.id, 0)
        # By the second time the watchdog has also looked at the run that waits.
        for _ in range(2):
            assert client.delete("empty") == 1
            store.schedule(lost.id, 0)
            until(lambda: broker.queue_length("empty"), 10, "the lost message is published again")

    assert (broker.queue_length("empty"), broker.queue_length("long")) == (1, 1)


def test_a_run_whose_message_was_lost_ends_with_the_right_result(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: RedisBroker
) -> None:
    result = count.delay(2, 0)
    with (
        broker.server.client(db=broker.db) as client,
        open_store(celery_app.conf.ckpt_store_url) as store,
    ):
        assert client.delete("celery") == 1
        store.schedule(result.id, 0)

    start_worker()

    assert_right_end(result, 2, ledger, broker)
