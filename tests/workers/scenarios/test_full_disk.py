"""The disk of the store is full for some seconds. Agents wait until there is room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.ledger_pipe import piped
from tests.support.tasks.scenarios import count, manual
from tests.support.wait import until
from tests.support.workers.broker import RedisBroker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.scenario import LONG_LEASE, assert_right_end, scenario

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]
#: The calls that are in flight when the disk fills up.
IN_FLIGHT = "llm 2", "iteration 2"
ITERATIONS = 6
SAID = [f"iteration {iteration}" for iteration in range(1, ITERATIONS + 1)]
STORES = pytest.mark.parametrize("kind", ["file", "sqlite"])


@pytest.fixture
def configuration(
    kind: str, configuration: Configuration, ledger: Ledger, tmp_path: Path
) -> Iterator[Configuration]:
    with piped(ledger) as pipe:
        yield replace(configuration, store_url=f"{kind}:///{tmp_path}/store", ledger=pipe)


@scenario(ckpt_lease_ttl=LONG_LEASE)
@STORES
def test_agents_continue_when_there_is_room_again(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    worker = start_worker(concurrency=2)
    ledger.hold(*IN_FLIGHT)
    waits, continues = count.delay(4), manual.delay(ITERATIONS)
    for name in IN_FLIGHT:
        ledger.wait_for_call(name, 30)

    worker.fill_disk()
    ledger.let_go()
    ledger.wait_for(lambda note: note.what == "checkpoint failed", 30)
    worker.make_room()

    assert_right_end(waits, 4, ledger, broker)
    assert continues.get(timeout=60) == SAID
    ledger.never_two_bodies_at_once(continues.id)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_an_outcome_that_could_not_be_recorded_is_not_reported_to_celery_and_the_work_is_repeated(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    worker = start_worker(concurrency=2)
    ledger.hold(*IN_FLIGHT)
    fails, ends = count.delay(3), manual.delay(ITERATIONS)
    for name in IN_FLIGHT:
        ledger.wait_for_call(name, 30)
    delivered = set(broker.unacked())

    worker.fill_disk()
    ledger.let_go()
    # One run must be retried, the other has returned. Neither can be recorded, so both attempts end.
    until(lambda: not delivered & set(broker.unacked()), 60, "the attempts are over")
    assert {fails.state, ends.state} == {"STARTED"}
    worker.make_room()

    # The run may be interrupted during a call, and once more if the machine is busy.
    assert_right_end(fails, 3, ledger, broker, interruptions=2)
    assert ends.get(timeout=60) == SAID
