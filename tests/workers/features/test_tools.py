"""``run.tools`` on real workers: a finished call is never repeated, whatever happens to the others."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_ckpt.runtime.process.context import AppContext
from tests.support.ledger import Ledger, names
from tests.support.tasks.toolboxes import (
    MODULE,
    expected,
    with_retries,
    with_retries_of_tasks,
    with_tasks,
    with_threads,
)
from tests.support.wait import until
from tests.support.workers.broker import Broker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool, Worker

pytestmark = [
    pytest.mark.configured(include=(MODULE,), conf={"ckpt_lease_ttl": 3}),
    pytest.mark.usefixtures("celery_app"),
]
ON_POOLS = pytest.mark.parametrize(
    ("pool", "task"),
    [
        *((pool, with_threads) for pool in ("prefork", "threads", "gevent", "solo")),
        *((pool, with_tasks) for pool in ("prefork", "threads")),
    ],
    ids=lambda one: getattr(one, "name", one).rpartition(".")[2],
)


def wait_for_steps(app: Celery, result: AsyncResult, count: int) -> None:
    """Wait until ``count`` calls of the first iteration are recorded."""
    store = AppContext.of(app).store
    until(lambda: len(store.steps(result.id, result.id)) == count, 60, f"{count} recorded steps")


@ON_POOLS
def test_a_killed_worker_repeats_only_the_tools_in_flight(
    celery_app: Celery,
    start_worker: StartWorker,
    ledger: Ledger,
    broker: Broker,
    pool: Pool,
    task: Any,
) -> None:
    doomed = start_worker(pool=pool)
    ledger.hold("work 1.1")
    result = task.delay(2, 4)
    wait_for_steps(celery_app, result, 1 + 3)

    doomed.kill_tree()
    ledger.let_go()
    start_worker(pool=pool)

    assert result.get(timeout=60) == expected(2, 4)
    assert ledger.repeated(result.id) == {(result.id, "work 1.1"): 2}
    ledger.never_two_bodies_at_once(result.id)
    broker.assert_clean(10)


@ON_POOLS
def test_a_worker_that_shuts_down_completes_the_tools_in_flight(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool, task: Any
) -> None:
    first = start_worker(pool=pool)
    ledger.hold("work 1.1", "work 1.2")
    result = task.delay(2, 4)
    ledger.wait_for_call("work 1.1", 60)
    ledger.wait_for_call("work 1.2", 60)

    first.term()
    assert first.wait_exit(60) == 0
    ledger.let_go()
    start_worker(pool=pool)

    assert result.get(timeout=60) == expected(2, 4)
    assert ledger.repeated(result.id) == {}
    assert ledger.bodies(result.id)[0].how == "HandOff"
    broker.assert_clean(10)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("task", [with_retries, with_retries_of_tasks], ids=["sync", "async"])
def test_only_retryable_calls_are_repeated(
    start_worker: StartWorker, ledger: Ledger, pool: Pool, task: Any
) -> None:
    start_worker(pool=pool)
    result = task.delay(4)

    wrong = "Error: ValueError: wrong"
    assert result.get(timeout=60) == [wrong, "flaky 1", wrong, "flaky 3"]
    assert ledger.repeated(result.id) == {(result.id, "flaky 1"): 2, (result.id, "flaky 3"): 2}


def test_a_soft_time_limit_in_a_tool_is_not_recorded_as_its_result(
    start_worker: StartWorker, ledger: Ledger
) -> None:
    start_worker()
    ledger.hold("work 1.0")
    result = with_threads.apply_async((1, 1), soft_time_limit=2)
    ended = ledger.wait_for(lambda note: note.what == "end", 60)
    ledger.let_go()

    assert ended["how"] == "SoftTimeLimitExceeded"
    assert result.get(timeout=60) == expected(1, 1)
    assert [note["retries"] for note in ledger.notes(result.id, "begin")][:2] == [0, 1]


@pytest.mark.parametrize("task", [with_threads, with_tasks], ids=["sync", "async"])
def test_a_soft_time_limit_during_tools_loses_no_completed_result(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, task: Any
) -> None:
    worker: Worker = start_worker()
    ledger.hold("work 1.1")
    result = task.apply_async((1, 3), soft_time_limit=5)
    until(lambda: "Soft time limit" in worker.log(), 60, "the limit")
    wait_for_steps(celery_app, result, 1 + 2)
    if task is with_tasks:
        until(lambda: ledger.notes(result.id, "end"), 60, "the first attempt ends")
    ledger.let_go()

    assert result.get(timeout=60) == expected(1, 3)
    ended = [note["how"] for note in ledger.notes(result.id, "end")]
    # The worker logs the limit before it sends the signal: a sync body may return before the signal.
    may_end = ["CancelledError"] if task is with_tasks else ["SoftTimeLimitExceeded", "returned"]
    assert ended[0] in may_end
    # A thread is awaited. A task is cancelled, and called again by each attempt that runs out of time.
    again = set() if task is with_threads else {(result.id, "work 1.1")}
    assert set(ledger.repeated(result.id)) <= again
    assert sorted(set(names(ledger.calls(run_id=result.id)))) == ["work 1.0", "work 1.1", "work 1.2"]
    ledger.never_two_bodies_at_once(result.id)
