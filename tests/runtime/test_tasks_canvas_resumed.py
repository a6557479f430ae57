"""A chain and a chord do not notice that a worker died under one of their agents."""

from __future__ import annotations

import pytest
from celery import chain, chord
from celery_workers.agents import research
from celery_workers.broker import Broker
from celery_workers.canvas import gather, same
from celery_workers.fixtures import StartWorker
from celery_workers.ledger import Ledger
from celery_workers.picking import counted, first_of

pytestmark = [
    pytest.mark.configured(
        include=("celery_workers.agents", "celery_workers.canvas", "celery_workers.picking"),
        conf={"ckpt_lease_ttl": 30},
    ),
    pytest.mark.usefixtures("celery_app"),
]


def test_a_chain_goes_on_once_after_an_agent_that_was_killed(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker()
    ledger.hold("tool 2")
    result = chain(same.s(3), research.s(0.1), first_of.s(), counted.s()).apply_async()
    worker.kill_child(ledger.wait_for_call("tool 2", 10).pid)
    ledger.let_go()

    assert result.get(timeout=60) == 2 + 3 + 4
    assert len(ledger.calls("counted")) == 1
    assert list(ledger.repeated().values()) in ([], [2]), "at most the call in flight"
    broker.assert_clean(5)


def test_a_chord_s_body_runs_once_after_an_agent_that_was_killed(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker(concurrency=2)
    ledger.hold("tool 2")
    header = [chain(research.s(3, 0.1), first_of.s()), same.s(1)]
    result = chord(header, gather.s()).apply_async()
    worker.kill_child(ledger.wait_for_call("tool 2", 10).pid)
    ledger.let_go()

    assert result.get(timeout=60) == 10
    assert len(ledger.calls("gather")) == 1
    broker.assert_clean(5)
