"""Workers that are killed, and workers that are frozen for longer than their lease."""

from __future__ import annotations

import re
import time

import pytest
from celery import Celery

from celery_ckpt import Agents
from celery_ckpt.views.timeline import attempts_in
from tests.support.ledger import Ledger
from tests.support.tasks import import_log, scenarios
from tests.support.tasks.scenarios import count, early
from tests.support.wait import until
from tests.support.workers.broker import Broker, RedisBroker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool
from tests.support.workers.scenario import (
    LEASE,
    LONG_LEASE,
    ON_BOTH_BROKERS,
    POOLS,
    SOON,
    assert_all_right,
    assert_right_end,
    on_brokers,
    on_rabbitmq,
    on_redis,
    scenario,
    several_workers,
    worker_of,
)

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]
#: Seconds. A body that is thawed needs less to notice that it has lost its lease.
UNTIL_FENCED = 60.0


@scenario(ckpt_lease_ttl=LONG_LEASE)
@ON_BOTH_BROKERS
def test_a_killed_pool_child_repeats_at_most_the_call_in_flight(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker()
    ledger.hold("tool 2")
    result = count.delay(4)
    child = ledger.wait_for_call("tool 2", 10).pid

    worker.kill_child(child)
    ledger.let_go()

    assert_right_end(result, 4, ledger, broker, interruptions=1)
    killed, successor = ledger.bodies(result.id)
    assert killed.how == "killed"
    # The successor did not wait for the lease to expire.
    assert successor.begin - killed.end < LONG_LEASE / 2


@on_brokers("pool", on_redis(*POOLS), on_rabbitmq("prefork"))
def test_another_worker_continues_where_a_killed_worker_stopped(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    workers = several_workers(2, start_worker, pool=pool)
    ledger.hold("tool 2")
    result = count.delay(4)
    doomed = worker_of(ledger.wait_for_call("tool 2", 10), workers)

    doomed.kill_tree()
    ledger.let_go()

    assert_right_end(result, 4, ledger, broker, interruptions=1)
    killed, successor = ledger.bodies(result.id)
    assert killed.how == "killed"
    # RabbitMQ redelivers at once, perhaps before the killed process has ended. The next attempt then
    # begins when the lease has expired.
    assert successor.begin - killed.end < LEASE + SOON


def test_the_event_log_shows_what_a_killed_worker_did(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, celery_app: Celery
) -> None:
    workers = several_workers(2, start_worker)
    agents = Agents(celery_app)
    ledger.hold("tool 2")
    result = count.delay(4)
    doomed = worker_of(ledger.wait_for_call("tool 2", 10), workers)
    # The call in progress travels with the next renewal of the lease.
    until(lambda: agents.store.activity(result.id).call is not None, 10, "the call is known")

    doomed.kill_tree()
    ledger.let_go()

    assert_right_end(result, 4, ledger, broker, interruptions=1)
    until(lambda: agents.log(result.id)[-1].kind == "settled", 10, "the run is settled")
    lost, successor = attempts_in(agents.log(result.id))
    assert lost.end is not None
    assert successor.end is not None
    assert (lost.number, lost.end.data["how"]) == (1, "lost")
    assert lost.end.data["calling"]["call"] == "tool"
    assert (successor.number, successor.end.data["how"]) == (2, "succeeded")
    assert {one.worker.partition("@")[0] for one in (lost, successor)} == {one.name for one in workers}
    assert {entry.kind for entry in lost.entries} == {"call"}
    # What the killed worker recorded since the last checkpoint is replayed; the rest is called.
    replays = [entry for entry in successor.entries if entry.kind == "replay"]
    called = [entry for entry in successor.entries if entry.kind == "call"]
    assert replays
    assert {entry.data["attempt"] for entry in replays} == {2}
    assert called[0].data["name"] == lost.end.data["calling"]["name"]


# A solo worker acknowledges after its task, whatever `acks_late` says.
@on_brokers("pool", on_redis("prefork", "threads", "gevent"), on_rabbitmq("prefork"))
def test_a_killed_worker_whose_messages_were_acknowledged_early_loses_nothing(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    workers = several_workers(2, start_worker, pool=pool)
    ledger.hold("tool 2")
    result = early.delay(4)
    doomed = worker_of(ledger.wait_for_call("tool 2", 10), workers)
    broker.assert_clean(1)

    doomed.kill_tree()
    ledger.let_go()

    assert_right_end(result, 4, ledger, broker, interruptions=1)


@pytest.mark.configured(include=(scenarios.MODULE, import_log.MODULE))
def test_the_watchdog_imports_nothing_while_the_pool_may_fork(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    """A process that is forked during an import would wait forever for the lock of that import."""
    workers = several_workers(2, start_worker, forked=False)
    ledger.hold("tool 1")
    result = early.delay(3)

    # The watchdog of the other worker must look, claim the run, and publish it.
    worker_of(ledger.wait_for_call("tool 1", 10), workers).kill_tree()
    ledger.let_go()

    assert_right_end(result, 3, ledger, broker, interruptions=1)
    imports = [note for note in ledger.notes(what="import") if "watchdog" in note["thread"]]
    assert imports == []


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_was_frozen_past_its_lease_changes_nothing_after_the_thaw(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pool: Pool
) -> None:
    workers = several_workers(2, start_worker, pool=pool)
    ledger.hold("tool 2")
    result = count.delay(6, 0)
    in_flight = ledger.wait_for_call("tool 2", 10)
    frozen = worker_of(in_flight, workers)

    frozen.freeze()
    ledger.hold("llm 4")
    ledger.wait_for_call("llm 4", 10)
    frozen.thaw()

    # The call in flight ends after the thaw. The store refuses its result, and the body stops.
    ledger.wait_for(lambda note: note.what == "end" and note["how"] == "Fenced", 10)
    ledger.let_go()
    assert_right_end(result, 6, ledger, broker, interruptions=1, grace_after_thaw=UNTIL_FENCED)
    assert [body.how for body in ledger.bodies(result.id)] == ["Fenced", "returned"]
    assert [call for call in ledger.calls() if call.pid == in_flight.pid][-1] == in_flight
    assert frozen.is_running()


def test_a_worker_that_thaws_after_the_run_has_ended_changes_nothing(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    workers = several_workers(2, start_worker)
    ledger.hold("tool 2")
    result = count.delay(3, 0)
    frozen = worker_of(ledger.wait_for_call("tool 2", 10), workers)

    frozen.freeze()
    ledger.let_go()
    right = result.get(timeout=60)
    frozen.thaw()

    ledger.wait_for(lambda note: note.what == "end" and note["how"] == "Fenced", 10)
    assert_right_end(result, 3, ledger, broker, interruptions=1)
    assert result.get() == right


@scenario(worker_prefetch_multiplier=4)
def test_messages_that_a_killed_worker_had_prefetched_are_soon_requeued(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    first = start_worker()
    ledger.hold("llm 1")
    results = [count.delay(2, 0.02) for _ in range(4)]
    until(lambda: len(broker.unacked()) == 4, 10, "the worker has fetched all messages")
    first.kill_tree()
    ledger.let_go()
    start_worker(concurrency=2)

    # The broker would redeliver them only after an hour, the visibility timeout.
    assert_all_right(results, 2, ledger, broker, interruptions=1)


def test_a_run_whose_worker_died_long_ago_is_requeued_once(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    doomed = start_worker()
    ledger.hold("tool 2")
    result = count.delay(3)
    ledger.wait_for_call("tool 2", 10)
    doomed.kill_tree()
    ledger.let_go()
    # No worker was running when the lease expired, nor when the message counted as lost.
    until(
        lambda: all(time.time() - at > LEASE + 2 for at in broker.unacked_index().values()),
        10,
        "time passes",
    )
    late = start_worker()

    assert_right_end(result, 3, ledger, broker, interruptions=1)
    brought_back = re.findall("was requeued", late.log())
    assert brought_back == ["was requeued"]
