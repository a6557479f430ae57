"""Workers that are shut down one after the other: the agent continues elsewhere, the worker exits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from socket import gethostname

import pytest
from celery import VERSION, current_app
from celery.result import AsyncResult

from tests.support.ledger import Ledger, Note
from tests.support.tasks.scenarios import count
from tests.support.wait import until
from tests.support.workers.broker import Broker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import FAST, Pool, Worker
from tests.support.workers.scenario import (
    LONG_LEASE,
    POOLS,
    assert_right_end,
    on_brokers,
    on_rabbitmq,
    on_redis,
    scenario,
    several_workers,
)

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]

End = Callable[[Worker], object]
#: Seconds within which a worker that executes an agent must exit.
EXIT = 12.0
#: Seconds that a worker waits for the call in flight in a soft shutdown.
PATIENT = 3
#: SIGTERM can be remapped to SIGQUIT. The pool makes no difference to that, so one pool is enough.
SOFT_ENDS = [*((pool, Worker.quit) for pool in POOLS), ("prefork", Worker.term)]
#: The exceptions that end a body when a cold shutdown stops it during a call.
STOPPED = {"SystemExit", "GreenletExit"}


def shut_down(worker: Worker) -> None:
    current_app.control.shutdown(destination=[f"{worker.name}@{gethostname()}"])


@on_brokers("pool", on_redis(*POOLS), on_rabbitmq("prefork", "threads"))
def test_warm_shutdowns_hand_over_an_agent_and_repeat_no_call(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    # A solo worker does not read control messages while it executes a task.
    ends: list[End] = [Worker.term, Worker.int_] + [shut_down] * (pool != "solo")
    workers = several_workers(len(ends) + 1, start_worker, pool=pool)
    ledger.hold()
    result = count.delay(6)

    left = _end_one_after_the_other(ends, workers, result, ledger)
    (restarted,) = set(workers) - set(left)
    ledger.wait_for(_call_in([restarted]), 10)
    restarted.hup()
    restarted.wait_ready()
    ledger.let_go()

    assert_right_end(result, 6, ledger, broker)
    _assert_ended_by(ledger, result, {"HandOff"}, at_least=len(ends) + 1)
    # After SIGINT Celery exits with status 1.
    assert [worker.wait_exit(EXIT) for worker in left] == [0, 1, 0][: len(left)]


@on_brokers("pool", on_redis(*POOLS), on_rabbitmq("prefork"))
def test_a_cold_shutdown_repeats_at_most_the_call_in_flight(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    workers = several_workers(2, start_worker, pool=pool)
    ledger.hold()
    result = count.delay(4)

    (left,) = _end_one_after_the_other([Worker.quit], workers, result, ledger)
    left.wait_exit(EXIT)
    ledger.let_go()

    assert_right_end(result, 4, ledger, broker, interruptions=1)
    _assert_ended_by(ledger, result, {"HandOff", *STOPPED}, at_least=1)


@scenario(worker_soft_shutdown_timeout=PATIENT, ckpt_lease_ttl=LONG_LEASE)
@pytest.mark.parametrize(("pool", "end"), SOFT_ENDS)
def test_a_soft_shutdown_hands_over_an_agent_and_repeats_no_call(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool, end: End
) -> None:
    remapped = {"REMAP_SIGTERM": "SIGQUIT"} if end is Worker.term else {}
    workers = several_workers(2, start_worker, pool=pool, environment=remapped)
    ledger.hold()
    result = count.delay(4)

    (left,) = _end_one_after_the_other([end], workers, result, ledger)
    left.wait_exit(EXIT)
    ledger.let_go()

    # Python runs a signal handler in the greenlet that is active. If that is the body's own, Celery
    # waits for the timeout inside the call, which then cannot return.
    may_be_stopped = pool == "gevent"
    assert_right_end(result, 4, ledger, broker, interruptions=int(may_be_stopped))
    _assert_ended_by(ledger, result, {"HandOff", *(STOPPED if may_be_stopped else ())}, at_least=1)


@pytest.mark.skipif(VERSION < (5, 7), reason="only Celery 5.7 and newer can spawn pool processes")
@scenario(worker_soft_shutdown_timeout=PATIENT, ckpt_lease_ttl=LONG_LEASE)
@pytest.mark.parametrize("end", [Worker.term, Worker.quit])
def test_a_spawned_pool_process_learns_of_a_shutdown_as_a_forked_one_does(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, end: End
) -> None:
    workers = several_workers(2, start_worker, options=(*FAST, "--pool-start-method=spawn"))
    ledger.hold()
    result = count.delay(4)

    (left,) = _end_one_after_the_other([end], workers, result, ledger)
    ledger.wait_for(_call_in([worker for worker in workers if worker is not left]), 20)
    assert left.wait_exit(EXIT) == 0
    ledger.let_go()

    assert_right_end(result, 4, ledger, broker)
    _assert_ended_by(ledger, result, {"HandOff"}, at_least=1)
    assert "leaked" not in left.log()


@scenario(ckpt_hand_off=False)
def test_a_worker_without_hand_offs_waits_for_its_agents(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker()
    ledger.hold()
    result = count.delay(3)
    ledger.wait_for_call("llm 1", 10)

    worker.term()
    until(lambda: "Warm shutdown" in worker.log(), 10, "the shutdown begins")
    ledger.let_go()

    assert worker.wait_exit(EXIT) == 0
    assert [body.how for body in ledger.bodies(result.id)] == ["returned"]
    assert_right_end(result, 3, ledger, broker)


def _end_one_after_the_other(
    ends: Sequence[End], workers: Sequence[Worker], result: AsyncResult, ledger: Ledger
) -> list[Worker]:
    """Shut down each worker that the agent comes to, in the given ways; return them in that order.

    All calls are held. A call continues when its worker knows that it is shutting down.
    """
    ended: list[Worker] = []
    for end in ends:
        there = [worker for worker in workers if worker not in ended]
        pid = ledger.wait_for(_call_in(there), 10, f"a call of {result.id} in another worker").pid
        (holder,) = [worker for worker in there if pid in worker.tree()]
        end(holder)
        ended.append(holder)
    return ended


def _call_in(workers: Sequence[Worker]) -> Callable[[Note], bool]:
    pids = {pid for worker in workers for pid in worker.tree()}
    return lambda note: note.what == "call" and note.pid in pids


def _assert_ended_by(ledger: Ledger, result: AsyncResult, ways: set[str], *, at_least: int) -> None:
    *ended, last = [body.how for body in ledger.bodies(result.id)]
    # The message may return to a worker that has not exited yet, which hands it off again.
    assert len(ended) >= at_least
    assert set(ended) <= ways
    assert last == "returned"
