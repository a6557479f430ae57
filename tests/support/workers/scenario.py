"""How every scenario ends, whatever happened in it: as if nothing had."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import pytest
from celery.result import AsyncResult

from tests.support import bodies
from tests.support.ledger import NO_RUN, Ledger, Note
from tests.support.repetitions import repetitions, uninterrupted
from tests.support.tasks.scenarios import MODULE
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Worker

#: A lease that ends soon, but not because a machine with two cores was busy for a moment.
LEASE = 3.0
#: One that no test waits for.
LONG_LEASE = 30.0
#: How long after the end of a lease somebody is at work again. On a quiet machine it is a second.
SOON = 10.0
POOLS = ("prefork", "threads", "solo", "gevent")


class Emptied(Protocol):
    """A broker, of whichever kind."""

    def assert_clean(self, deadline: float) -> None: ...


def scenario(*, transport_options: dict[str, Any] | None = None, **conf: Any) -> pytest.MarkDecorator:
    """The configuration of a scenario."""
    changed = {"ckpt_lease_ttl": LEASE, **conf}
    return pytest.mark.configured(
        include=(MODULE,), transport_options=transport_options or {}, conf=changed
    )


def several_workers(number: int, start_worker: StartWorker, **options: Any) -> list[Worker]:
    """Start workers side by side, and wait until all are ready."""
    workers = [start_worker(wait=False, **options) for _ in range(number)]
    return [worker.wait_ready() for worker in workers]


def who_made(note: Note, workers: Sequence[Worker]) -> Worker:
    """The worker in which something was noted."""
    return next(worker for worker in workers if note.pid in worker.tree())


def assert_right_end(
    result: AsyncResult,
    n: int,
    ledger: Ledger,
    broker: Emptied,
    *,
    interruptions: int = 0,
    grace_after_thaw: float = 0.0,
) -> None:
    """The result is right, nothing was done twice or side by side, no message is left behind.

    Each of the ``interruptions`` may have cost the one call that was being made just then.
    """
    value, expected = result.get(timeout=60), uninterrupted(n)
    assert value == expected, f"{value} instead of {expected}"
    assert repetitions(result.id, n, ledger.notes(result.id)) <= interruptions, str(ledger)
    ledger.never_two_bodies_at_once(result.id, grace_after_thaw)
    broker.assert_clean(10)


def assert_all_right(
    results: Sequence[AsyncResult], n: int, ledger: Ledger, broker: Emptied, *, interruptions: int = 0
) -> None:
    """The same for many results, with the interruptions of all of them."""
    assert [result.get(timeout=60) for result in results] == [uninterrupted(n)] * len(results)
    notes = defaultdict(list)
    for note in ledger.notes():
        notes[note.run_id].append(note)
    own = {result.id: notes[result.id] for result in results}
    repeated = sum(repetitions(run_id, n, found) for run_id, found in own.items())
    assert repeated <= interruptions, f"{repeated} calls were made again: {ledger.repeated()}"
    for run_id, found in own.items():
        in_order = sorted([*found, *notes[NO_RUN]], key=lambda note: note.at)
        overlapping = bodies.overlaps(bodies.of_run(in_order, run_id))
        assert not overlapping, f"two bodies of run {run_id} at once: {overlapping}"
    broker.assert_clean(15)
