"""A worker that RabbitMQ disconnects because it has held a message for longer than consumer_timeout."""

from __future__ import annotations

import pytest

from tests.support.ledger import Ledger
from tests.support.tasks.scenarios import count
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


def test_a_worker_that_exceeds_the_consumer_timeout_hands_its_agent_over(
    start_worker: StartWorker, ledger: Ledger, broker: RabbitBroker
) -> None:
    ledger.hold("llm 1")
    with broker.server.consumer_timeout(1500):
        workers = several_workers(2, start_worker)
        result = count.delay(3)
        disconnected = worker_of(ledger.wait_for_call("llm 1", 10), workers)

        # Celery shuts the worker down. The agent learns of the shutdown, and nothing is lost.
        assert disconnected.wait_exit(20) != 0
        assert_right_end(result, 3, ledger, broker)

    assert "delivery acknowledgement on channel 1 timed out" in disconnected.log()
    assert {body.how for body in ledger.bodies(result.id)} == {"HandOff", "returned"}
