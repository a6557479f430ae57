"""An agent task reports no outcome that the store has not recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from celery import Celery, chord

from celery_ckpt import Agents
from celery_ckpt.errors import CheckpointTooLarge
from tests.support.ledger import Ledger
from tests.support.servers.valkey import Valkey
from tests.support.tasks.canvas import collect, note_failure
from tests.support.tasks.interruptions import MODULE, TRACER_FAILS, count, grow, held, plain
from tests.support.wait import until
from tests.support.workers.broker import STORE_DB
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.scenario import POOLS

pytestmark = pytest.mark.configured(
    include=(MODULE, "tests.support.tasks.canvas"), conf={"ckpt_lease_ttl": 3}
)


@pytest.mark.usefixtures("celery_app")
@pytest.mark.parametrize("pool", POOLS)
def test_an_error_in_the_celery_tracer_after_a_hand_off_does_not_fail_the_run(
    start_worker: StartWorker, ledger: Ledger, pool: str
) -> None:
    start_worker(pool=pool)
    part = count.s(TRACER_FAILS).on_error(note_failure.s())

    assert chord([part, part.clone()], collect.s())().get(timeout=120) == [3, 3]

    assert len(ledger.notes(what="interrupted")) == 2
    assert ledger.calls("errback") == []


@pytest.mark.configured(conf={"ckpt_lease_ttl": 3, "ckpt_max_checkpoint_bytes": 50_000})
def test_a_run_that_is_too_large_to_hand_off_is_recorded_as_failed(
    celery_app: Celery, start_worker: StartWorker
) -> None:
    start_worker()
    result = grow.delay()

    with pytest.raises(CheckpointTooLarge):
        result.get(timeout=60)
    status = Agents(celery_app).status(result.id)
    assert status.status == "failed"
    assert status.error.startswith("CheckpointTooLarge: ")


class TestAStoreThatRefuses:
    """For example because a permission is missing: what the store refuses is not recorded."""

    @pytest.fixture
    def configuration(self, configuration: Configuration, other_server: Valkey) -> Configuration:
        return replace(configuration, store_url=other_server.url_of(STORE_DB))

    @pytest.mark.usefixtures("celery_app")
    def test_the_end_of_a_run_is_recorded_when_the_permission_returns(
        self, start_worker: StartWorker, ledger: Ledger, other_server: Valkey
    ) -> None:
        worker = start_worker()
        ledger.hold("held")
        result = held.apply_async(link_error=note_failure.s())
        ledger.wait_for_call("held", 30)

        with without_rights(other_server):
            ledger.let_go()
            until(lambda: "Could not record the outcome" in worker.log(), 60, "it is refused")

        assert result.get(timeout=120) == "done"
        assert ledger.calls("errback") == []

    @pytest.mark.usefixtures("celery_app")
    def test_a_run_starts_when_the_permission_returns(
        self, start_worker: StartWorker, ledger: Ledger, other_server: Valkey
    ) -> None:
        worker = start_worker()
        ledger.hold("plain")
        plain.delay()
        ledger.wait_for_call("plain", 30)
        result = held.apply_async(link_error=note_failure.s())

        with without_rights(other_server):
            ledger.let_go()
            until(lambda: "Run cannot start yet" in worker.log(), 60, "it is refused")

        assert result.get(timeout=120) == "done"
        assert ledger.calls("errback") == []


@contextmanager
def without_rights(server: Valkey) -> Iterator[None]:
    """Deny scripts to every client inside the block. Every write of the store is a script."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-@scripting")
        try:
            yield
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+@all")
