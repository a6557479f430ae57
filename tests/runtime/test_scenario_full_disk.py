"""A disk without room for a while, under the workers' own store: agents wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from celery_workers.broker import Broker
from celery_workers.configuration import Configuration
from celery_workers.fixtures import StartWorker
from celery_workers.ledger import Ledger
from celery_workers.piping import piped
from celery_workers.scenarios import by_hand, count
from scenario_kit import assert_right_end, scenario

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]


@pytest.fixture(params=["file", "sqlite"])
def configuration(
    request: pytest.FixtureRequest, configuration: Configuration, ledger: Ledger, tmp_path: Path
) -> Iterator[Configuration]:
    with piped(ledger) as pipe:
        yield replace(configuration, store_url=f"{request.param}:///{tmp_path}/store", ledger=pipe)


def test_agents_go_on_when_there_is_room_again(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker(concurrency=2)
    waits, goes_on = count.delay(4), by_hand.delay(6)
    ledger.wait_for_call("llm 2", 20)

    worker.fill_disk()
    ledger.wait_for(lambda note: note.what == "checkpoint failed", 20)
    worker.make_room()

    # If the lease ended meanwhile, a successor may make the call in flight again.
    assert_right_end(waits, 4, ledger, broker, timeout=40, interruptions=1)
    assert goes_on.get(timeout=40) == [f"turn {turn}" for turn in range(1, 7)]
    ledger.never_two_bodies_at_once(goes_on.id)
