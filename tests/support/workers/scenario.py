"""What all scenarios share: their configuration, the brokers they run on, and how they must end.

Whatever happens in a scenario, its run ends as an uninterrupted run does.

A scenario runs on Redis. Decorators name other brokers: ``ON_BOTH_BROKERS``, ``ON_RABBITMQ``, or, for a
test with one more parameter::

    @on_brokers("pool", on_redis("prefork", "threads"), on_rabbitmq("prefork"))
    def test_a_fault(start_worker, broker, pool): ...

Tests on RabbitMQ are skipped where it is not installed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.support import bodies
from tests.support.ledger import NO_RUN, Ledger, Note
from tests.support.repetitions import repetitions, uninterrupted
from tests.support.servers.rabbitmq import missing_programs
from tests.support.tasks.scenarios import MODULE
from tests.support.workers.broker import Broker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Worker

#: Short, but long enough not to expire because a machine with two cores is busy.
LEASE = 3.0
#: Longer than any test waits.
LONG_LEASE = 30.0
#: How long after the end of a lease the next attempt may begin. On an idle machine it takes a second.
SOON = 10.0
POOLS = ("prefork", "threads", "solo", "gevent")

_MISSING = missing_programs()
_RABBITMQ = pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}")


def on_redis(*values: Any) -> list[Any]:
    """Return parameters for ``on_brokers``: the test runs on Redis, once with each value."""
    return [pytest.param("redis", value) for value in values]


def on_rabbitmq(*values: Any, marks: Sequence[pytest.MarkDecorator] = ()) -> list[Any]:
    """Return parameters for ``on_brokers``: the test runs on RabbitMQ, once with each value."""
    return [pytest.param("rabbitmq", value, marks=[_RABBITMQ, *marks]) for value in values]


def on_brokers(name: str, *parameters: list[Any]) -> pytest.MarkDecorator:
    """Run a test with these pairs of a broker and a value of the parameter ``name``."""
    pairs = [pair for some in parameters for pair in some]
    return pytest.mark.parametrize(("broker", name), pairs, indirect=["broker"])


ON_RABBITMQ = pytest.mark.parametrize(
    "broker", [pytest.param("rabbitmq", marks=_RABBITMQ)], indirect=True
)
ON_BOTH_BROKERS = pytest.mark.parametrize(
    "broker", ["redis", pytest.param("rabbitmq", marks=_RABBITMQ)], indirect=True
)


def scenario(*, transport_options: dict[str, Any] | None = None, **conf: Any) -> pytest.MarkDecorator:
    """Return the mark with the configuration of a scenario: a short lease, and these settings."""
    changed = {"ckpt_lease_ttl": LEASE, **conf}
    return pytest.mark.configured(
        include=(MODULE,), transport_options=transport_options or {}, conf=changed
    )


def several_workers(number: int, start_worker: StartWorker, **options: Any) -> list[Worker]:
    """Start workers at the same time, and wait until all are ready."""
    workers = [start_worker(wait=False, **options) for _ in range(number)]
    return [worker.wait_ready() for worker in workers]


def worker_of(note: Note, workers: Sequence[Worker]) -> Worker:
    """Return the worker whose process wrote a note."""
    return next(worker for worker in workers if note.pid in worker.tree())


def assert_right_end(
    result: AsyncResult,
    n: int,
    ledger: Ledger,
    broker: Broker,
    *,
    interruptions: int = 0,
    grace_after_thaw: float = 0.0,
) -> None:
    """Assert that the result is right, no call was repeated, no bodies overlapped, no message is left.

    Each of the ``interruptions`` may repeat the one call that was in flight.
    """
    value, expected = result.get(timeout=60), uninterrupted(n)
    assert value == expected, f"the result is {value}, expected {expected}"
    assert repetitions(result.id, n, ledger.notes(result.id)) <= interruptions, str(ledger)
    ledger.never_two_bodies_at_once(result.id, grace_after_thaw)
    broker.assert_clean(10)


def assert_all_right(
    results: Sequence[AsyncResult], n: int, ledger: Ledger, broker: Broker, *, interruptions: int = 0
) -> None:
    """Assert for many results what ``assert_right_end`` does, with ``interruptions`` in total."""
    assert [result.get(timeout=60) for result in results] == [uninterrupted(n)] * len(results)
    notes = defaultdict(list)
    for note in ledger.notes():
        notes[note.run_id].append(note)
    own = {result.id: notes[result.id] for result in results}
    repeated = sum(repetitions(run_id, n, found) for run_id, found in own.items())
    assert repeated <= interruptions, f"{repeated} calls were repeated: {ledger.repeated()}"
    for run_id, found in own.items():
        in_order = sorted([*found, *notes[NO_RUN]], key=lambda note: note.at)
        overlapping = bodies.overlaps(bodies.of_run(in_order, run_id))
        assert not overlapping, f"two bodies of run {run_id} overlap: {overlapping}"
    broker.assert_clean(15)
