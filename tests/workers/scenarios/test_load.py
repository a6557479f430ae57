"""Many agents at the same time, while workers are replaced or killed."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.tasks.scenarios import async_count, count, fair
from tests.support.wait import until
from tests.support.workers.broker import Broker
from tests.support.workers.configuration import FAST_REDELIVERY
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.scenario import LONG_LEASE, assert_all_right, scenario, several_workers

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]

#: Seconds within which a worker that executes agents must exit.
EXIT = 12.0


def test_agents_survive_a_rolling_deploy_and_no_worker_hangs(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    workers = deque(several_workers(2, start_worker, concurrency=4))
    # Long enough for two deploys on a slow machine, and for three on others.
    results = [count.delay(30, 0.15) for _ in range(8)]
    _wait_for_begins(ledger, 8)
    for _ in range(3):
        leaving = workers.popleft()
        leaving.term()
        workers.append(start_worker(concurrency=4, wait=False))
        assert leaving.wait_exit(EXIT) == 0
        workers[-1].wait_ready()

    assert_all_right(results, 30, ledger, broker)
    hand_offs = len(ledger.notes(what="handed off"))
    # Usually each worker hands four agents off.
    assert hand_offs >= 8
    assert len(ledger.notes(what="begin")) == len(results) + hand_offs


def test_agents_hand_off_twenty_times_in_a_row_under_load(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    workers = several_workers(2, start_worker, concurrency=2)
    results = [fair.delay(20, 0) for _ in range(8)]

    assert_all_right(results, 20, ledger, broker)
    for result in results:
        how = [body.how for body in ledger.bodies(result.id)]
        assert how == ["HandOff"] * 19 + ["returned"], (
            "after the last iteration there is nothing to hand off"
        )
    for worker in workers:
        worker.term()
    assert [worker.wait_exit(EXIT) for worker in workers] == [0, 0]


def _wait_for_begins(ledger: Ledger, number: int) -> None:
    # Counted without parsing: there are thousands of notes.
    until(lambda: ledger.path.read_bytes().count(b'"begin"') >= number, 40, f"{number} bodies began")


# Hundreds of threads share one interpreter. They renew their leases, but not within a second.
@scenario(ckpt_lease_ttl=LONG_LEASE)
def test_two_hundred_async_agents_run_at_the_same_time_in_one_worker(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, tmp_path: Path
) -> None:
    start_worker(pool="threads", concurrency=200)
    gate = tmp_path / "gate"
    results = [async_count.delay(2, str(gate)) for _ in range(200)]
    _wait_for_begins(ledger, 200)
    assert ledger.notes(what="end") == []

    gate.touch()

    assert_all_right(results, 2, ledger, broker)
    assert len(ledger.notes(what="begin")) == 200


# No record has the messages that a killed worker had prefetched. The broker must redeliver them.
@scenario(transport_options={**FAST_REDELIVERY, "visibility_timeout": 3})
def test_a_hundred_agents_survive_killed_pool_processes_and_a_killed_worker(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    results = [count.delay(1, 0) for _ in range(100)]
    first, second = several_workers(2, start_worker, concurrency=2)
    for done, worker in ((10, first), (30, second), (50, second), (70, first)):
        _wait_for_begins(ledger, done)
        worker.kill_child(until(worker.children, 10, "the pool has processes")[0])
        if done == 30:
            first.kill_tree()
            first.start()

    assert_all_right(results, 1, ledger, broker, interruptions=6)
