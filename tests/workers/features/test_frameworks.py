"""Frameworks on real workers: code on loops of their own, and hand-offs where the body wants them."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_ckpt import Agents, Conversation, Message
from tests.support.ledger import Ledger
from tests.support.tasks.framework import MODULE, answer, by_turns
from tests.support.wait import until
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool

pytestmark = [
    pytest.mark.configured(include=(MODULE,), conf={"ckpt_lease_ttl": 3}),
    pytest.mark.usefixtures("celery_app"),
]
TURNS = 3


def conversation() -> Conversation:
    """Return what the framework says in an uninterrupted run."""
    messages = [Message.user("go")]
    for turn in range(TURNS):
        tools = " ".join(f"tool {turn}.{n}" for n in range(3))
        messages += [Message.assistant(f"model {turn}"), Message.user(tools)]
    return Conversation(messages=messages)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("ends", ["kill_tree", "term"])
def test_a_framework_continues_after_its_worker_is_killed_or_replaced(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, ends: str, pool: Pool
) -> None:
    worker = start_worker(pool=pool)
    ledger.hold("tool 1.1")
    result = answer.delay(TURNS)
    ledger.wait_for_call("tool 1.1", 60)
    agents = Agents(celery_app)
    ledger.wait_for_call("tool 1.2", 60)

    getattr(worker, ends)()
    if ends == "term":
        assert worker.wait_exit(60) == 0, "the held call continues when its worker is shutting down"
    ledger.let_go()
    start_worker(pool=pool)

    assert result.get(timeout=120) == [TURNS, 111, conversation().digest]
    repeated = {name for (_, name) in ledger.repeated(result.id)}
    # Those beside the held one may have been killed just before they were recorded.
    assert repeated <= ({"tool 1.0", "tool 1.1", "tool 1.2"} if ends == "kill_tree" else set())
    until(lambda: agents.status(result.id).status == "succeeded", 30, "the end is recorded")
    status = agents.status(result.id)
    assert status.usage.input_tokens == 111, "each call is counted once"
    ledger.never_two_bodies_at_once(result.id)


def test_a_body_hands_itself_off_and_consumes_no_retry(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger
) -> None:
    start_worker()
    result = by_turns.delay(3)

    assert result.get(timeout=120) == [0, 1, 2]
    assert ledger.repeated(result.id) == {}
    assert [body.facts["attempt"] for body in ledger.notes(result.id, "begin")] == [1, 2, 3, 4]
    assert Agents(celery_app).status(result.id).retries == 0


def test_a_body_knows_that_its_worker_is_shutting_down(
    start_worker: StartWorker, ledger: Ledger
) -> None:
    worker = start_worker()
    ledger.hold("work 0")
    result = by_turns.delay(2)
    ledger.wait_for_call("work 0", 60)
    assert ledger.notes(result.id, "stopping") == []

    worker.term()
    assert worker.wait_exit(60) == 0
    assert len(ledger.notes(result.id, "stopping")) == 1
    ledger.let_go()
    start_worker()
    assert result.get(timeout=120) == [0, 1]
    assert ledger.repeated(result.id) == {}
