"""Long series of work on the same processes: at the end they must hold as much as at the start.

A round consists of some dozens of agents: short ones, long ones, some that return to the queue after
each iteration, some that fail and are retried, and two runs of a named agent. When all have ended, a
sweep deletes them, and everything is measured. The first rounds are only for warming up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import psutil
from celery import current_app
from celery.result import AsyncResult

from celery_ckpt import Agents
from celery_ckpt.runtime.pruning.tasks import PRUNE
from tests.chaos.evidence import examined
from tests.chaos.fleet import Fleet
from tests.chaos.judge import Verdict
from tests.support.repetitions import uninterrupted
from tests.support.servers.valkey import Valkey
from tests.support.tasks.agents import flaky
from tests.support.tasks.scenarios import count, fair, talk, weigh
from tests.support.wait import until

_END = 120.0
#: Agents are deleted soon after their end, so that a round leaves nothing behind.
CONF = {"ckpt_forget_finished_after": 0.05, "ckpt_keep": 3, "ckpt_prune_every": 3600}
_NAMED = "somebody"
_MEGABYTE = 1 << 20
#: The tolerated growth of each value from the first third to the last.
TOLERANCES = {
    "child_objects": 500,
    "parent_bytes": 3 * _MEGABYTE,
    "child_bytes": 3 * _MEGABYTE,
    "store_bytes": _MEGABYTE // 4,
    "broker_bytes": _MEGABYTE // 4,
    "threads": 1,
    "files": 2,
    "store_connections": 2,
    "broker_connections": 2,
    "keys": 0,
}


@dataclass(frozen=True)
class Sample:
    """What there is after a round.

    For processes, files and connections it is the maximum of all processes: a process opens some when
    it gets a kind of work for the first time, and which process gets it, and when, is random.
    """

    child_objects: int
    parent_bytes: int
    child_bytes: int
    store_bytes: int
    broker_bytes: int
    threads: int
    files: int
    store_connections: int
    broker_connections: int
    keys: int


def soak(
    name: str,
    seed: int,
    rounds: int,
    size: int,
    report_fault: Callable[[str], object] = str,
    workers: int = 2,
    warm_up: int = 3,
) -> Verdict:
    """Run ``rounds`` rounds of ``agents`` short agents. Problems are in the verdict, not raised."""
    verdict = Verdict(name, seed)
    with examined(verdict, workers=workers, conf=CONF) as made:
        samples = []
        for number in range(warm_up + rounds):
            report_fault(f"round {number + 1}")
            verdict.runs += _round(made, size)
            if number >= warm_up:
                samples.append(sample(made))
        verdict.faults = rounds
        verdict.calls = len(made.ledger.calls())
        verdict.problems += [*drift(samples), *_left_over(made)]
        verdict.remarks.append(measurements_line(samples))
    return verdict


def _round(made: Fleet, size: int) -> int:
    sent: list[tuple[AsyncResult, Any]] = []
    sent += [(count.delay(1, 0), uninterrupted(1)) for _ in range(size)]
    sent += [(count.delay(20, 0), uninterrupted(20)) for _ in range(max(1, size // 20))]
    sent += [(fair.delay(3, 0), uninterrupted(3)) for _ in range(max(1, size // 10))]
    sent += [(flaky.delay(2), 3) for _ in range(max(1, size // 10))]
    sent += [(talk.apply_async((str(number), 2), agent_id=_NAMED), None) for number in range(2)]
    for result, expected in sent:
        value = result.get(timeout=_END)
        assert expected in (None, value), f"run {result.id} returned {value}"
        result.forget()
    _sweep(made)
    return len(sent)


def _sweep(made: Fleet) -> None:
    """Delete everything that has ended."""
    agents = Agents(current_app)
    until(lambda: not agents.store.activity(_NAMED).open, _END, "all runs are settled")
    agents.delete(_NAMED)

    def is_empty() -> bool:
        if made.broker.queue_length() == 0:
            current_app.send_task(PRUNE)
        return not list(agents.names())

    until(is_empty, _END, "all agents are deleted")
    until(lambda: not made.broker.left(), _END, "no message is left")
    until(lambda: not list(_stale_keys(made.store)), _END, "no key is left")


# -- measuring -------------------------------------------------------------------------------------


def sample(made: Fleet) -> Sample:
    """Measure everything."""
    parents = [psutil.Process(worker.pid) for worker in made.workers]
    children = [child for parent in parents for child in parent.children()]
    store_bytes, keys = _server(made.store)
    broker_bytes, _ = _server(made.broker.server)
    return Sample(
        child_objects=_most_objects(len(children)),
        parent_bytes=max(parent.memory_info().rss for parent in parents),
        child_bytes=max(child.memory_info().rss for child in children),
        store_bytes=store_bytes,
        broker_bytes=broker_bytes,
        threads=max(process.num_threads() for process in parents + children),
        files=max(process.num_fds() for process in parents + children),
        store_connections=_most_connections(parents + children, made.configuration.store_url),
        broker_connections=_most_connections(parents + children, made.configuration.broker_url),
        keys=keys,
    )


def _most_objects(children: int) -> int:
    """Return the number of live objects in the child that has the most.

    Each child collects its garbage first: Celery's retries leave a lot of it, tens of megabytes.
    """
    asked = [weigh.delay() for _ in range(2 * children)]
    weighed = [result.get(timeout=_END) for result in asked]
    for result in asked:
        result.forget()
    return max(weighed)


def _most_connections(processes: list[psutil.Process], url: str) -> int:
    """Return the largest number of connections that one process has to a server, or to the
    network before it.
    """
    port = urlsplit(url).port
    peers = ([one.raddr for one in process.net_connections("tcp")] for process in processes)
    return max(sum(bool(peer) and peer.port == port for peer in own) for own in peers)


def _server(server: Valkey) -> tuple[int, int]:
    with server.client() as client:
        client.memory_purge()
        return client.info("memory")["used_memory_dataset"], client.dbsize()


def drift(samples: list[Sample]) -> Iterator[str]:
    """Return the values that grew from the first third to the last by more than their tolerance."""
    for what, (before, after) in _thirds(samples).items():
        if after - before > TOLERANCES[what]:
            yield f"{what} grew from {before:,.0f} to {after:,.0f}"


def _thirds(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    third = len(samples) // 3
    values = [asdict(one) for one in samples]
    first, last = values[:third], values[-third:]
    return {
        what: (median(one[what] for one in first), median(one[what] for one in last))
        for what in TOLERANCES
    }


def measurements_line(samples: list[Sample]) -> str:
    """Return the measurements in one line."""
    parts = []
    for what, (before, after) in _thirds(samples).items():
        name, unit = what.removesuffix("_bytes").replace("_", " "), 1
        if what.endswith("_bytes"):
            name, unit = f"{name} MB", _MEGABYTE
        digits = 1 if unit > 1 else 0
        parts.append(f"{name} {before / unit:,.{digits}f} → {after / unit:,.{digits}f}")
    return ", ".join(parts)


def _left_over(made: Fleet) -> Iterator[str]:
    """Return what is in the store although it must be empty."""
    findings = (found for found in Agents(current_app).doctor() if found.kind != "risk")
    yield from (f"the doctor found: {finding}" for finding in findings)
    yield from (f"key {key} is left" for key in _stale_keys(made.store))


def _stale_keys(store: Valkey) -> list[str]:
    """Return the keys that do not expire by themselves, as the list of watchdogs and markers do."""
    with store.client(decode_responses=True) as client:
        return [key for key in client.scan_iter() if client.ttl(key) == -1]
