"""The result backend is unavailable when a run ends. The caller gets the result when it is back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.ledger import Ledger
from tests.support.servers.valkey import Valkey
from tests.support.tasks import backend_failure
from tests.support.tasks.backend_failure import GAVE_UP
from tests.support.tasks.canvas import note_failure
from tests.support.tasks.scenarios import MODULE, count
from tests.support.workers.broker import BACKEND_DB, Broker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool
from tests.support.workers.scenario import LEASE, POOLS, assert_right_end, scenario

#: By default Celery retries for twenty seconds.
ONCE = {"retry_policy": {"max_retries": 1, "interval_start": 0, "interval_step": 0.1}}

pytestmark = [
    pytest.mark.usefixtures("celery_app"),
    scenario(result_backend_transport_options=ONCE),
]


@pytest.fixture
def configuration(configuration: Configuration, other_server: Valkey) -> Configuration:
    return replace(configuration, backend_url=other_server.url_of(BACKEND_DB))


@pytest.mark.parametrize("pool", POOLS)
def test_a_result_that_could_not_be_stored_is_stored_when_the_backend_is_back(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, other_server: Valkey, pool: Pool
) -> None:
    worker = start_worker(pool=pool)
    ledger.hold("tool 3")
    result = count.delay(3)
    ledger.wait_for_call("tool 3", 10)

    other_server.kill()
    ledger.let_go()
    # Celery acknowledges the message although it could not store the result.
    ledger.wait_for(lambda note: note.what == "end", 10)
    broker.assert_clean(10)
    other_server.start()

    assert_right_end(result, 3, ledger, broker)
    assert len(ledger.bodies(result.id)) == 1
    sent_again = f"Run was requeued: agent={result.id} task=count run={result.id} attempt=1"
    assert f"{sent_again} status=succeeded" in worker.log()


@pytest.mark.configured(
    include=(MODULE, note_failure.__module__, backend_failure.__name__),
    conf={"ckpt_lease_ttl": LEASE, "result_backend_transport_options": ONCE},
)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_that_succeeded_is_not_reported_as_failed_if_the_backend_returns_when_celery_gives_up(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, other_server: Valkey, pool: Pool
) -> None:
    start_worker(pool=pool)
    ledger.hold("tool 3", GAVE_UP)
    result = count.apply_async((3,), link_error=note_failure.s())
    ledger.wait_for_call("tool 3", 10)

    other_server.kill()
    ledger.hold(GAVE_UP)
    ledger.wait_for(lambda note: note.what == GAVE_UP, 10)
    other_server.start()
    ledger.let_go()

    assert_right_end(result, 3, ledger, broker)
    assert ledger.calls("errback") == []
