"""The store is unavailable for some seconds. Agents wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.ledger import Ledger
from tests.support.servers.valkey import Valkey
from tests.support.tasks.scenarios import count, manual
from tests.support.wait import until
from tests.support.workers.broker import STORE_DB, Broker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.scenario import assert_right_end, scenario

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]


@pytest.fixture
def configuration(configuration: Configuration, other_server: Valkey) -> Configuration:
    return replace(configuration, store_url=other_server.url_of(STORE_DB))


def test_an_agent_waits_for_a_store_that_comes_back_with_its_data(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, other_server: Valkey
) -> None:
    worker = start_worker(pool="threads")
    ledger.hold("llm 2")
    result = count.delay(5)
    ledger.wait_for_call("llm 2", 10)

    other_server.kill()
    ledger.let_go()
    # The first failed renewal of the lease, or look of the watchdog, comes after some seconds.
    until(
        lambda: "watchdog cannot check" in worker.log() or "renew the lease" in worker.log(),
        20,
        "the worker misses the store",
    )
    other_server.start()

    # If the lease expired during the outage, a successor may repeat the call in flight.
    assert_right_end(result, 5, ledger, broker, interruptions=1)


def test_a_failed_checkpoint_is_reported_and_the_next_one_contains_its_changes(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, other_server: Valkey
) -> None:
    start_worker()
    ledger.hold("iteration 2")
    result = manual.delay(5)
    ledger.wait_for_call("iteration 2", 10)

    other_server.kill()
    ledger.let_go()
    ledger.wait_for(lambda note: note.what == "checkpoint failed", 20)
    other_server.start()

    assert result.get(timeout=60) == [f"iteration {iteration}" for iteration in range(1, 6)]
    ledger.never_two_bodies_at_once(result.id)
    broker.assert_clean(10)


def test_a_run_that_is_delivered_while_the_store_is_unavailable_starts_later(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, other_server: Valkey
) -> None:
    result = count.delay(2)
    other_server.kill()
    worker = start_worker()

    until(lambda: "Run cannot start yet" in worker.log(), 30, "the run cannot start")
    other_server.start()

    assert_right_end(result, 2, ledger, broker)


class TestAWorkerThatStartsWithoutItsStore:
    @pytest.fixture
    def configuration(self, configuration: Configuration) -> Configuration:
        return replace(configuration, store_url=configuration.store_url.replace("//", "//:hunter2@"))

    def test_reports_that_agents_wait_for_the_store(
        self, start_worker: StartWorker, other_server: Valkey
    ) -> None:
        other_server.kill()
        worker = start_worker(wait=False)
        worker.wait_ready(120)

        where = other_server.url_of(STORE_DB)
        said = f"The checkpoint store does not answer yet. Agents wait for it. store={where}"
        assert said in worker.log()
        assert "can lose work" not in worker.log()
        assert "hunter2" not in worker.log()
