"""A message that RabbitMQ delivers again by itself, after the watchdog has published a copy of it.

On RabbitMQ a delivery tag is valid only on its own connection, so the watchdog cannot requeue or
remove the message of a dead worker. It publishes a copy, and the message that arrives second must
change nothing.
"""

from __future__ import annotations

import pytest
from celery import Celery

from celery_ckpt.runtime.process.context import AppContext
from tests.support.ledger import Ledger
from tests.support.tasks.scenarios import count
from tests.support.wait import until
from tests.support.workers.broker import RabbitBroker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.scenario import (
    ON_RABBITMQ,
    assert_right_end,
    scenario,
    several_workers,
    worker_of,
)

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario(), ON_RABBITMQ]
#: One message is left: a worker has it and has not acknowledged it.
ONE_UNACKED = {"celery": (0, 1)}


def test_a_run_records_no_delivery_tag(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: RabbitBroker
) -> None:
    start_worker()
    ledger.hold("llm 1")
    result = count.delay(2)
    ledger.wait_for_call("llm 1", 10)
    record = AppContext.of(celery_app).store.run(result.id, result.id)

    assert record is not None
    assert (record.delivery, broker.left()) == ("", ONE_UNACKED)
    ledger.let_go()
    assert_right_end(result, 2, ledger, broker)
    assert len(ledger.bodies(result.id)) == 1


def test_the_message_of_a_frozen_worker_changes_nothing_after_its_run_ended_elsewhere(
    start_worker: StartWorker, ledger: Ledger, broker: RabbitBroker
) -> None:
    workers = several_workers(2, start_worker)
    ledger.hold("tool 2")
    result = count.delay(4)
    frozen = worker_of(ledger.wait_for_call("tool 2", 10), workers)

    frozen.freeze()
    ledger.let_go()
    value = result.get(timeout=60)
    # The copy is acknowledged. The frozen worker still has the first message.
    until(lambda: broker.left() == ONE_UNACKED, 10, "only the message of the frozen worker is left")
    frozen.kill_tree()

    assert_right_end(result, 4, ledger, broker, interruptions=1)
    assert len(ledger.bodies(result.id)) == 2
    assert result.get() == value
