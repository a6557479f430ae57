"""Workers, senders and beat with exactly the Redis permissions that the documentation gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from celery import Celery

from celery_ckpt import Agents
from tests.support.ledger import Ledger
from tests.support.repetitions import uninterrupted
from tests.support.servers.acl import as_user, documented_rules, refusals
from tests.support.servers.valkey import Valkey
from tests.support.tasks.scenarios import MODULE, count, fair, talk
from tests.support.wait import until
from tests.support.workers.broker import BACKEND_DB
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import WorkerProcess

CONF = {"ckpt_key_prefix": "research:", "ckpt_prune_every": 1, "ckpt_keep": 2, "ckpt_lease_ttl": 5}
BEAT = ("-A", "tests.support.workers.app", "beat", "-l", "INFO", "--pidfile=", "-s", "beat.db")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, Valkey]]:
    with (
        Valkey(tmp_path / "store", config=documented_rules("store.acl")) as store,
        Valkey(tmp_path / "broker", config=documented_rules("broker.acl")) as broker,
    ):
        yield {"store": store, "broker": broker}


@pytest.fixture
def configuration(servers: dict[str, Valkey], ledger: Ledger) -> Configuration:
    return Configuration(
        broker_url=as_user(servers["broker"], "worker"),
        backend_url=as_user(servers["broker"], "worker", BACKEND_DB),
        store_url=as_user(servers["store"], "worker"),
        ledger=ledger.path,
        include=(MODULE,),
        conf=CONF,
    )


@pytest.fixture
def beat(
    configuration: Configuration, servers: dict[str, Valkey], tmp_path: Path
) -> Iterator[WorkerProcess]:
    """Beat may publish, and has no user in the store."""
    its_own = replace(
        configuration,
        broker_url=as_user(servers["broker"], "beat"),
        store_url=as_user(servers["store"], "beat"),
    )
    process = WorkerProcess(tmp_path, BEAT, its_own.environment(), name="beat")
    yield process
    process.close()


def test_nothing_that_a_worker_a_sender_or_beat_does_is_refused(
    start_worker: StartWorker,
    celery_app: Celery,
    beat: WorkerProcess,
    servers: dict[str, Valkey],
    ledger: Ledger,
) -> None:
    worker = start_worker(concurrency=2, options=("-E",))
    beat.start()
    until(lambda: celery_app.control.ping(timeout=1), 30, "the worker answers")
    retried = talk.apply_async(("retried", 2, True), agent_id="somebody", priority=5)
    ledger.hold("llm 2")
    deployed = count.delay(4, 0.05)
    ledger.wait_for_call("llm 2", 30)
    worker.term()
    assert worker.wait_exit(60) == 0
    ledger.let_go()
    worker.start().wait_ready()

    assert deployed.get(timeout=60) == uninterrupted(4)
    assert fair.delay(3, 0).get(timeout=60) == uninterrupted(3)
    assert retried.get(timeout=60) == ["retried 1", "retried 2"]
    agents = Agents(celery_app)
    until(lambda: len(agents.history(deployed.id)) == 2, 60, "beat has triggered pruning")
    agents.delete("somebody")
    findings = list(agents.doctor(repair=True))
    assert all(found.repaired or found.kind == "risk" for found in findings), findings
    assert refusals(servers["store"]) == []
    assert refusals(servers["broker"]) == []


@pytest.mark.usefixtures("celery_app")
def test_an_agent_whose_worker_lacks_a_permission_continues_when_it_is_granted(
    start_worker: StartWorker, servers: dict[str, Valkey], ledger: Ledger
) -> None:
    worker = start_worker()
    ledger.hold("llm 2")
    result = count.delay(3, 0)
    ledger.wait_for_call("llm 2", 30)
    with servers["store"].client() as client:
        client.acl_setuser("worker", commands=["-evalsha", "-eval"])
    ledger.let_go()

    until(
        lambda: "Could not record the outcome" in worker.log(),
        30,
        "the end of the attempt is refused",
    )
    assert "no permissions to run the 'evalsha' command" in worker.log()
    until(lambda: "The watchdog cannot check" in worker.log(), 30, "the watchdog reports it")
    until(lambda: refused_more_often(servers["store"], 10), 60, "it tries again and again")
    assert worker.log().count("The watchdog cannot check") == 1
    # The store has no outcome, so Celery reports none.
    assert not result.ready()

    with servers["store"].client() as client:
        client.acl_setuser("worker", enabled=True, commands=["+evalsha", "+eval"])
    assert result.get(timeout=120) == uninterrupted(3)


def refused_more_often(server: Valkey, times: int) -> bool:
    with server.client(decode_responses=True) as client:
        return any(int(one["count"]) > times for one in client.acl_log())
