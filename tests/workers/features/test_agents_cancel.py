"""``Agents(app).cancel``: whatever a run is doing, it ends there as REVOKED, and is never requeued."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chord
from celery.result import AsyncResult

from celery_ckpt import Agents
from celery_ckpt.runtime.process.context import AppContext
from tests.support.ledger import Ledger
from tests.support.tasks.canvas import gather
from tests.support.tasks.operations import async_endless, backing_off, calling, endless, remember
from tests.support.wait import until
from tests.support.workers.broker import RedisBroker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Worker

pytestmark = pytest.mark.configured(
    include=("tests.support.tasks.operations", "tests.support.tasks.canvas"),
    conf={"ckpt_lease_ttl": 10, "task_track_started": True},
)


@pytest.fixture
def agents(celery_app: Celery) -> Agents:
    return Agents(celery_app)


def is_over(worker: Worker, ledger: Ledger, result: AsyncResult, broker: RedisBroker) -> None:
    """True if the body has ended, its message is acknowledged, and its state is REVOKED."""
    ledger.wait_for(lambda note: note.what == "end" and note.run_id == result.id, 10)
    assert [body.how for body in ledger.bodies(result.id)] == ["Fenced"]
    broker.assert_clean(5)
    assert state_of(result) == "REVOKED"


def state_of(result: AsyncResult) -> str:
    """Return the state that the backend has now, not the one that the object has cached."""
    return str(result.app.AsyncResult(result.id).state)


@pytest.mark.parametrize("task", [endless, async_endless], ids=["sync", "async"])
def test_a_running_agent_is_cancelled_at_its_next_event(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker, task: Any
) -> None:
    worker = start_worker(pool="threads")
    result = task.delay()
    ledger.wait_for_call("think 2", 10)

    assert agents.cancel(result.id) is True

    is_over(worker, ledger, result, broker)
    assert agents.status(result.id).status == "cancelled"
    assert agents.cancel(result.id) is False
    assert remember.delay("after").get(timeout=60) == ["after"]
    assert len(ledger.bodies(result.id)) == 1


def test_an_async_agent_is_cancelled_during_a_long_call(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    start_worker(pool="threads")
    result = async_endless.delay(3600)
    ledger.wait_for_call("think 1", 10)

    assert agents.cancel(result.id)

    # It ends when its worker notices that the lease is lost, not only at its next event.
    ledger.wait_for(lambda note: note.what == "end" and note.run_id == result.id, 20)
    assert [body.how for body in ledger.bodies(result.id)] == ["CancelledError"]
    broker.assert_clean(5)
    assert state_of(result) == "REVOKED"


def test_a_cancelled_conversation_has_no_pending_tool_calls(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    worker = start_worker(pool="threads")
    ledger.hold("tool")
    result = calling.apply_async(agent_id="caller")
    ledger.wait_for_call("tool", 10)
    until(lambda: agents.history("caller"), 5, "the reply is saved")
    latest = agents.latest("caller")
    assert latest is not None
    assert len(latest.conversation.pending_tool_calls()) == 2
    assert latest.state == {"asked": 1}

    assert agents.cancel("caller")
    ledger.let_go()

    is_over(worker, ledger, result, broker)
    latest = agents.latest("caller")
    assert latest is not None
    assert [message.text for message in latest.conversation.messages] == ["begin"]
    assert latest.conversation.pending_tool_calls() == []
    assert latest.state == {}, "the usage at the beginning of the iteration, like the conversation"
    assert latest.metadata == {"reason": "cancelled"}


def test_all_runs_of_an_agent_are_cancelled_including_blocked_ones(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    worker = start_worker(pool="threads", concurrency=2)
    active = endless.apply_async(agent_id="busy")
    ledger.wait_for_call("think 2", 10)
    waiting = [remember.apply_async((word,), agent_id="busy") for word in ("one", "two")]
    until(lambda: agents.status("busy").blocked == 2, 10, "both wait")

    assert agents.cancel("busy")

    is_over(worker, ledger, active, broker)
    assert [state_of(one) for one in waiting] == ["REVOKED", "REVOKED"]
    latest = agents.latest("busy")
    assert latest is not None
    assert {"one", "two"}.isdisjoint(message.text for message in latest.conversation.messages)
    assert remember.apply_async(("three",), agent_id="busy").get(timeout=60)[-1] == "three"


@pytest.mark.parametrize("forget", [False, True], ids=["cancelled", "deleted"])
def test_a_cancelled_queued_run_never_starts(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker, forget: bool
) -> None:
    result = endless.apply_async(agent_id="too late")
    assert broker.queue_length() == 1

    assert (agents.delete("too late") == 0) if forget else agents.cancel("too late")
    assert state_of(result) == "REVOKED"
    start_worker(pool="threads")

    broker.assert_clean(10)
    assert remember.delay("after").get(timeout=60) == ["after"]
    assert ledger.bodies(result.id) == []
    assert state_of(result) == "REVOKED"


def test_a_run_waiting_for_its_retry_is_cancelled(
    agents: Agents, start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    start_worker(pool="threads")
    result = backing_off.delay()
    until(lambda: state_of(result) == "RETRY", 10, "it waits for its retry")

    assert agents.cancel(result.id)

    assert state_of(result) == "REVOKED"
    assert agents.status(result.id).status == "cancelled"
    assert len(ledger.calls("failing")) == 1


def test_an_interrupted_cancellation_is_completed_by_a_worker(
    agents: Agents, celery_app: Celery, start_worker: StartWorker, ledger: Ledger
) -> None:
    result = endless.apply_async(agent_id="half cancelled")
    store = AppContext.of(celery_app).store
    # Everything that a process has done that dies right afterwards.
    store.cancel_run("half cancelled", result.id, "somebody", 0.1)
    assert state_of(result) == "PENDING"

    start_worker(pool="threads")

    until(lambda: state_of(result) == "REVOKED", 10, "the caller sees it")
    until(lambda: not store.activity("half cancelled").open, 10, "it is settled")
    assert agents.runs("half cancelled")[0].ended_at is not None
    assert ledger.bodies(result.id) == []


def test_a_chord_fails_when_an_agent_of_its_header_is_cancelled(
    agents: Agents, start_worker: StartWorker, ledger: Ledger
) -> None:
    start_worker(pool="threads", concurrency=2)
    result = chord([endless.s()], gather.s()).apply_async()
    running = ledger.wait_for_call("think 1", 10).run_id

    assert agents.cancel(running)

    with pytest.raises(Exception, match="cancelled"):
        result.get(timeout=60)


def test_cancelling_a_finished_or_unknown_agent_does_nothing(
    agents: Agents, start_worker: StartWorker
) -> None:
    start_worker(pool="threads")
    result = remember.delay("all")
    assert result.get(timeout=60) == ["all"]
    until(lambda: agents.status(result.id).status == "succeeded", 5, "it is recorded")

    assert agents.cancel(result.id) is False
    assert agents.cancel("nobody") is False
    assert state_of(result) == "SUCCESS"
