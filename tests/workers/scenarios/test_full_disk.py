"""A disk without room for a while, under the workers' own store: agents wait for it."""

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


#: What both are amid when the disk is full.
AMID = "llm 2", "turn 2"
TURNS = 6
TOLD = [f"turn {turn}" for turn in range(1, TURNS + 1)]
STORES = pytest.mark.parametrize("kind", ["file", "sqlite"])


@pytest.fixture
def configuration(
    kind: str, configuration: Configuration, ledger: Ledger, tmp_path: Path
) -> Iterator[Configuration]:
    with piped(ledger) as pipe:
        yield replace(configuration, store_url=f"{kind}:///{tmp_path}/store", ledger=pipe)


@scenario(ckpt_lease_ttl=LONG_LEASE)
@STORES
def test_agents_go_on_when_there_is_room_again(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    worker = start_worker(concurrency=2)
    ledger.hold(*AMID)
    waits, goes_on = count.delay(4), manual.delay(TURNS)
    for name in AMID:
        ledger.wait_for_call(name, 30)

    worker.fill_disk()
    ledger.let_go()
    ledger.wait_for(lambda note: note.what == "checkpoint failed", 30)
    worker.make_room()

    assert_right_end(waits, 4, ledger, broker)
    assert goes_on.get(timeout=60) == TOLD
    ledger.never_two_bodies_at_once(goes_on.id)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_what_could_not_be_recorded_is_not_told_to_celery_but_done_again(
    start_worker: StartWorker, ledger: Ledger, broker: RedisBroker
) -> None:
    worker = start_worker(concurrency=2)
    ledger.hold(*AMID)
    fails, ends = count.delay(3), manual.delay(TURNS)
    for name in AMID:
        ledger.wait_for_call(name, 30)
    delivered = set(broker.unacked())

    worker.fill_disk()
    ledger.let_go()
    # One is to be retried, the other has returned; for neither is there room, until both are given up.
    until(lambda: not delivered & set(broker.unacked()), 60, "the attempts are over")
    assert {fails.state, ends.state} == {"STARTED"}
    worker.make_room()

    # Each of them may be interrupted amid a call, and another time if the machine is busy.
    assert_right_end(fails, 3, ledger, broker, interruptions=2)
    assert ends.get(timeout=60) == TOLD
