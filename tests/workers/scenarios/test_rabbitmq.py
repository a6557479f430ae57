"""The main scenarios on RabbitMQ, which knows at once that a worker is dead and redelivers by itself.

A message has no name there that outlives its connection, so nothing of it can be put back or dropped:
the watchdog sends a copy, and whichever of the two comes second has to find that it is too late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_ckpt import Agents
from celery_ckpt.runtime.process.context import AppContext
from tests.support.ledger import Ledger, names
from tests.support.servers.rabbitmq import RabbitBroker, RabbitMq, missing_programs
from tests.support.tasks.scenarios import count, early, fair, killed_at_its_end, talk
from tests.support.wait import until
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool
from tests.support.workers.scenario import (
    LEASE,
    LONG_LEASE,
    SOON,
    assert_right_end,
    scenario,
    several_workers,
    uninterrupted,
    who_made,
)

MISSING = missing_programs()
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.usefixtures("celery_app"),
    scenario(),
]
AGENT = "user-42"
#: Celery 5.7 changes the prefetch count from a thread of the pool after it has reconnected, beside the
#: main thread that reads from the same connection; acknowledgements get stuck then, of any task.
THREADS_RECONNECTING = pytest.param(
    "threads", marks=scenario(worker_enable_prefetch_count_reduction=False), id="threads"
)


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """The node of each xdist worker."""
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def rabbit(rabbitmq_server: RabbitMq) -> RabbitBroker:
    return RabbitBroker(rabbitmq_server)


@pytest.fixture
def configuration(configuration: Configuration, rabbit: RabbitBroker) -> Configuration:
    """Result backend and store are where they always are."""
    return replace(configuration, broker_url=rabbit.url)


def test_an_agent_runs_and_its_message_needs_no_name(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, rabbit: RabbitBroker
) -> None:
    start_worker()
    ledger.hold("llm 1")
    result = count.delay(2)
    ledger.wait_for_call("llm 1", 10)
    record = AppContext.of(celery_app).store.run(result.id, result.id)

    assert record is not None
    assert (record.delivery, rabbit.left()) == ("", {"celery": (0, 1)})
    ledger.let_go()
    assert_right_end(result, 2, ledger, rabbit)
    assert len(ledger.bodies(result.id)) == 1


@scenario(ckpt_lease_ttl=LONG_LEASE)
def test_a_killed_pool_child_costs_at_most_the_call_in_flight(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker
) -> None:
    worker = start_worker()
    ledger.hold("tool 2")
    result = count.delay(4)
    child = ledger.wait_for_call("tool 2", 10).pid

    worker.kill_child(child)
    ledger.let_go()

    assert_right_end(result, 4, ledger, rabbit, interruptions=1)
    killed, successor = ledger.bodies(result.id)
    assert killed.how == "killed"
    # Its lease was not waited for.
    assert successor.begin - killed.end < LONG_LEASE / 2


def test_another_worker_goes_on_where_a_killed_one_was(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker
) -> None:
    workers = several_workers(2, start_worker)
    ledger.hold("tool 2")
    result = count.delay(4)
    doomed = who_made(ledger.wait_for_call("tool 2", 10), workers)

    doomed.kill_tree()
    ledger.let_go()

    assert_right_end(result, 4, ledger, rabbit, interruptions=1)
    killed, successor = ledger.bodies(result.id)
    assert killed.how == "killed"
    # The broker brings it back at once: while the process is dying, that may be too early.
    assert successor.begin - killed.end < LEASE + SOON


def test_a_frozen_worker_s_run_is_sent_again_and_its_own_message_changes_nothing(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker
) -> None:
    workers = several_workers(2, start_worker)
    ledger.hold("tool 2")
    result = count.delay(4)
    frozen = who_made(ledger.wait_for_call("tool 2", 10), workers)

    frozen.freeze()
    ledger.let_go()
    right = result.get(timeout=60)
    # The watchdog has sent another message; the first one is still with the frozen worker.
    until(lambda: rabbit.left() == {"celery": (0, 1)}, 10, "only one message is left")
    frozen.kill_tree()

    assert_right_end(result, 4, ledger, rabbit, interruptions=1)
    assert len(ledger.bodies(result.id)) == 2
    assert result.get() == right


def test_a_run_whose_message_was_acknowledged_early_is_sent_again(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker
) -> None:
    workers = several_workers(2, start_worker)
    ledger.hold("tool 2")
    result = early.delay(4)
    doomed = who_made(ledger.wait_for_call("tool 2", 10), workers)
    rabbit.assert_clean(1)

    doomed.kill_tree()
    ledger.let_go()

    assert_right_end(result, 4, ledger, rabbit, interruptions=1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_warm_shutdown_hands_an_agent_over_and_costs_no_call(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker, pool: Pool
) -> None:
    workers = several_workers(2, start_worker, pool=pool)
    ledger.hold()
    result = count.delay(4)
    ended = who_made(ledger.wait_for_call("llm 1", 10), workers)

    ended.term()
    assert ended.wait_exit(12) == 0
    ledger.let_go()

    assert_right_end(result, 4, ledger, rabbit)
    assert {body.how for body in ledger.bodies(result.id)} == {"HandOff", "returned"}


def test_a_cold_shutdown_costs_at_most_the_call_in_flight(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker
) -> None:
    workers = several_workers(2, start_worker)
    ledger.hold()
    result = count.delay(4)
    ended = who_made(ledger.wait_for_call("llm 1", 10), workers)

    ended.quit()
    ended.wait_exit(12)
    ledger.let_go()

    assert_right_end(result, 4, ledger, rabbit, interruptions=1)
    assert len(ledger.bodies(result.id)) > 1


def test_connections_closed_between_two_hand_offs_lose_no_run(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker
) -> None:
    start_worker()
    ledger.hold("tool 3")
    result = fair.delay(6)
    # By now its process has a connection of its own, over which it has sent itself.
    ledger.wait_for_call("tool 3", 10)

    assert rabbit.cut_connections() > 1
    ledger.let_go()

    assert_right_end(result, 6, ledger, rabbit)
    assert {body.how for body in ledger.bodies(result.id)} == {"HandOff", "returned"}


@pytest.mark.parametrize("pool", ["prefork", THREADS_RECONNECTING])
def test_closed_connections_never_make_two_of_an_agent(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker, pool: Pool
) -> None:
    worker = start_worker(pool=pool, concurrency=2)
    ledger.hold("llm 2")
    result = count.delay(3, 0)
    ledger.wait_for_call("llm 2", 10)

    assert rabbit.cut_connections() > 0
    # Celery does run it twice; the second one finds that somebody works on it.
    until(lambda: f"[{result.id}] ignored" in worker.log(), 10, "the second one is dropped")
    ledger.let_go()

    assert_right_end(result, 3, ledger, rabbit)
    assert len(ledger.bodies(result.id)) == 1


def test_a_worker_that_is_cut_off_for_holding_its_message_too_long_hands_the_agent_over(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker, rabbitmq_server: RabbitMq
) -> None:
    ledger.hold("llm 1")
    with rabbitmq_server.impatient(1500):
        workers = several_workers(2, start_worker)
        result = count.delay(3)
        cut_off = who_made(ledger.wait_for_call("llm 1", 10), workers)

        # Celery does not survive that. The agent is told that its worker ends, and nothing is lost.
        assert cut_off.wait_exit(20) != 0
        assert_right_end(result, 3, ledger, rabbit)

    assert "delivery acknowledgement on channel 1 timed out" in cut_off.log()
    assert {body.how for body in ledger.bodies(result.id)} == {"HandOff", "returned"}


def test_an_outcome_that_celery_never_got_is_delivered(
    start_worker: StartWorker, ledger: Ledger, rabbit: RabbitBroker, tmp_path: Path
) -> None:
    start_worker()
    marker = tmp_path / "killed"
    result = killed_at_its_end.delay(1, str(marker))

    assert_right_end(result, 1, ledger, rabbit)
    assert marker.exists()


def _sent(name: str, turns: int, **options: bool) -> AsyncResult:
    return talk.apply_async((name, turns), options, agent_id=AGENT)


def test_a_second_run_waits_for_the_first_across_its_retry_and_its_hand_offs(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, rabbit: RabbitBroker
) -> None:
    start_worker()
    first = _sent("first", 2, fails_once=True)
    ledger.wait_for_call("first 1", 10)
    second = _sent("second", 1)
    # While the first is between two attempts and the second waits, the only slot is free.
    other = count.delay(1, 0)

    assert other.get(timeout=60) == uninterrupted(1)
    assert not second.ready()
    assert second.get(timeout=60) == ["first 1", "first 2", "second 1"]
    assert first.get(timeout=60) == ["first 1", "first 2"]
    assert names(ledger.calls(run_id=AGENT)) == ["first 1", "first 2", "second 1"]
    ledger.never_two_bodies_at_once(AGENT)
    assert Agents(celery_app).status(AGENT).blocked == 0
    rabbit.assert_clean(10)
