"""A delivery that finds no record of its run: deleted runs are dropped, and lost ones are reported."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_ckpt import Agents
from celery_ckpt.errors import AgentNotFound, RunLost
from celery_ckpt.runtime.process.context import AppContext
from tests.support.ledger import Ledger
from tests.support.tasks.canvas import note_failure
from tests.support.tasks.late_states import MODULE, fails_first, storing, unheard
from tests.support.tasks.operations import endless, remember
from tests.support.wait import until
from tests.support.workers.broker import STORE_DB, RedisBroker
from tests.support.workers.fixtures import StartWorker

pytestmark = pytest.mark.configured(
    include=("tests.support.tasks.operations", "tests.support.tasks.canvas", MODULE),
    conf={"ckpt_lease_ttl": 10, "task_track_started": True},
)
DROPPED = "Run was deleted with its agent and its message is dropped"


@pytest.fixture
def agents(celery_app: Celery) -> Agents:
    return Agents(celery_app)


def state_of(result: AsyncResult) -> str:
    return str(result.app.AsyncResult(result.id).state)


def lose_everything(broker: RedisBroker) -> None:
    with broker.server.client(db=STORE_DB) as client:
        client.flushdb()


# -- deleted -------------------------------------------------------------------------------------------


def test_a_late_started_does_not_hide_that_a_run_was_deleted(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    start_worker(pool="threads")
    ledger.hold(storing("STARTED"))
    result = endless.delay()
    ledger.wait_for_call(storing("STARTED"), 10)

    agents.delete(result.id)
    assert state_of(result) == "REVOKED"
    ledger.let_go()
    ledger.wait_for(lambda note: note.what == "end" and note.run_id == result.id, 10)

    broker.assert_clean(5)
    assert state_of(result) == "REVOKED"
    with pytest.raises(AgentNotFound):
        agents.status(result.id)


def test_a_late_retry_does_not_bring_a_deleted_run_back(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    worker = start_worker(pool="threads")
    ledger.hold(storing("RETRY"))
    result = fails_first.apply_async(agent_id="deleted")
    ledger.wait_for_call(storing("RETRY"), 10)

    agents.delete("deleted")
    assert state_of(result) == "REVOKED"
    ledger.let_go()
    ledger.wait_for(lambda note: note.what == "stored RETRY", 10)
    until(lambda: state_of(result) == "REVOKED", 5, "the attempt corrects the state")

    until(lambda: DROPPED in worker.log(), 10, "the message of the retry is dropped")
    broker.assert_clean(5)
    assert state_of(result) == "REVOKED"
    assert len(ledger.calls("working")) == 1
    with pytest.raises(AgentNotFound):
        agents.status("deleted")


def test_a_state_that_is_stored_after_the_deletion_is_corrected_by_the_next_delivery(
    agents: Agents, celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    """The worker that stored it died just after that, so only its message is left."""
    result = endless.apply_async(agent_id="deleted")
    agents.delete("deleted")
    celery_app.backend.store_result(result.id, None, "STARTED")

    start_worker(pool="threads")

    until(lambda: state_of(result) == "REVOKED", 10, "the delivery corrects the state")
    broker.assert_clean(5)
    assert ledger.bodies(result.id) == []


@pytest.mark.parametrize("is_cancelled_first", [False, True], ids=["deleted", "cancelled and deleted"])
def test_a_deleted_run_without_a_result_never_starts(
    agents: Agents,
    start_worker: StartWorker,
    ledger: Ledger,
    broker: RedisBroker,
    is_cancelled_first: bool,
) -> None:
    unheard.apply_async(agent_id="deleted")
    if is_cancelled_first:
        assert agents.cancel("deleted")
    agents.delete("deleted")

    worker = start_worker(pool="threads")

    until(lambda: DROPPED in worker.log(), 10, "its message is dropped")
    broker.assert_clean(5)
    assert ledger.calls("working") == []
    with pytest.raises(AgentNotFound):
        agents.status("deleted")


def test_the_name_of_a_deleted_agent_is_free_at_once(
    agents: Agents, start_worker: StartWorker, broker: RedisBroker
) -> None:
    old = remember.apply_async(("old",), agent_id="name")
    agents.delete("name")
    new = remember.apply_async(("new",), agent_id="name")

    start_worker(pool="threads")

    assert new.get(timeout=60) == ["new"]
    broker.assert_clean(5)
    assert state_of(old) == "REVOKED"
    assert [run.run_id for run in agents.runs("name")] == [new.id]


# -- lost ----------------------------------------------------------------------------------------------


def test_a_run_whose_record_is_lost_while_it_works_is_reported_as_lost(
    agents: Agents, celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    start_worker(pool="threads")
    result = endless.apply_async(agent_id="lost", link_error=note_failure.s())
    ledger.wait_for_call("think 2", 10)

    lose_everything(broker)

    with pytest.raises(RunLost, match=f"Run {result.id!r} of agent 'lost' was lost: it had begun"):
        result.get(timeout=60)
    ledger.wait_for_call("errback", 10)
    store = AppContext.of(celery_app).store
    until(lambda: agents.runs("lost") and not store.activity("lost").open, 10, "it is settled")
    assert agents.status("lost").status == "failed"
    assert agents.status("lost").error.startswith("RunLost: ")
    broker.assert_clean(5)
    assert len(ledger.bodies(result.id)) == 1


def test_a_run_whose_record_is_lost_between_two_attempts_is_reported_as_lost(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    start_worker(pool="threads")
    result = fails_first.delay()
    until(lambda: state_of(result) == "RETRY", 10, "its retry is published")

    lose_everything(broker)

    with pytest.raises(RunLost):
        result.get(timeout=60)
    assert len(ledger.calls("working")) == 1
    broker.assert_clean(5)
    until(lambda: agents.status(result.id).status == "failed", 5, "it is on record")


def test_a_lost_run_can_be_resumed(
    agents: Agents, celery_app: Celery, start_worker: StartWorker, broker: RedisBroker
) -> None:
    start_worker(pool="threads")
    result = fails_first.delay()
    until(lambda: state_of(result) == "RETRY", 10, "its retry is published")
    lose_everything(broker)
    until(lambda: state_of(result) == "FAILURE", 20, "it is reported")

    agents.resume(result.id)  # waits until the run is settled

    until(lambda: state_of(result) == "SUCCESS", 20, "it starts from the beginning")


def test_a_run_whose_record_is_lost_before_it_began_starts(
    start_worker: StartWorker, broker: RedisBroker, celery_app: Celery
) -> None:
    result = remember.apply_async(("once",), agent_id="lost")
    lose_everything(broker)

    start_worker(pool="threads")

    assert result.get(timeout=60) == ["once"]
    broker.assert_clean(5)
