"""Chains, chords, groups and callbacks do not notice that a worker died while it executed an agent."""

from __future__ import annotations

import pytest
from celery import chain, chord, group

from tests.support.ledger import Ledger
from tests.support.tasks.agents import research
from tests.support.tasks.canvas import gather, note, same
from tests.support.tasks.chain_links import counted, first_of
from tests.support.workers.broker import Broker
from tests.support.workers.fixtures import StartWorker

INCLUDED = (
    "tests.support.tasks.agents",
    "tests.support.tasks.canvas",
    "tests.support.tasks.chain_links",
)
#: The death of a child is noticed immediately, that of a whole worker when its lease expires.
soon = pytest.mark.configured(include=INCLUDED, conf={"ckpt_lease_ttl": 3})

pytestmark = [
    pytest.mark.configured(include=INCLUDED, conf={"ckpt_lease_ttl": 30}),
    pytest.mark.usefixtures("celery_app"),
]


def test_a_chain_continues_once_after_an_agent_was_killed(
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


def test_a_chord_body_runs_once_after_an_agent_was_killed(
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


@soon
def test_a_group_has_all_its_results_after_its_worker_was_killed(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker(concurrency=2)
    ledger.hold("tool 2")
    result = group(research.s(3, 0.1), research.s(4, 0.1), same.s(1)).apply_async()
    for member in result.results[:2]:
        ledger.wait_for_call("tool 2", 10, member.id)
    worker.kill_tree()
    ledger.let_go()
    start_worker(concurrency=2)

    first, second, plain = result.get(timeout=60)
    assert (first[0], second[0], plain) == (2 + 3 + 4, 2 + 3 + 4 + 5, 1)
    assert set(ledger.repeated().values()) <= {2}, "at most the calls in flight"
    broker.assert_clean(5)


@soon
def test_a_linked_task_is_called_once_after_the_worker_was_killed(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker()
    ledger.hold("tool 2")
    result = research.apply_async((3, 0.1), link=note.s("linked to it"))
    ledger.wait_for_call("tool 2", 10)
    worker.kill_tree()
    ledger.let_go()
    start_worker()

    assert result.get(timeout=60)[0] == 2 + 3 + 4
    ledger.wait_for_call("linked", 10)  # its message is acknowledged before it is executed
    broker.assert_clean(10)
    [linked] = ledger.calls("linked")
    assert linked["value"][0] == 2 + 3 + 4
