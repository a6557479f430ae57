"""The replica that must confirm each write is unavailable for some seconds. Agents wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from celery_ckpt import open_store
from tests.support.ledger import Ledger
from tests.support.servers.replicas import Pair, replicated
from tests.support.tasks.scenarios import count
from tests.support.wait import until
from tests.support.workers.broker import Broker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.scenario import assert_right_end, scenario

pytestmark = [
    pytest.mark.usefixtures("celery_app"),
    scenario(ckpt_durability="replica", ckpt_lease_ttl=10),
]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with replicated(tmp_path / "pair") as pair:
        yield pair


@pytest.fixture
def configuration(configuration: Configuration, pair: Pair) -> Configuration:
    return replace(configuration, store_url=f"{pair.master.url}?socket_timeout=0.5")


def test_an_agent_continues_when_the_replica_is_back_and_the_replica_has_every_write(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, pair: Pair
) -> None:
    worker = start_worker(pool="threads")
    ledger.hold("llm 2")
    result = count.delay(5)
    ledger.wait_for_call("llm 2", 10)

    pair.fall_behind()
    ledger.let_go()
    until(
        lambda: worker.log().count("not confirmed by a replica") > 1,
        20,
        "the worker misses the replica",
    )
    pair.catch_up()

    assert_right_end(result, 5, ledger, broker)
    pair.lose_master()
    with open_store(pair.replica.url) as store:
        assert store.load_latest(result.id).iteration == 5
        assert store.run(result.id, result.id).status == "succeeded"
