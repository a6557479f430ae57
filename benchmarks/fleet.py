"""What a sweep of many agents costs, and how long it delays other clients.

``python -m benchmarks.fleet --agents 100000``; without a number, it runs as in ``make bench``.

A sweep keeps two of each agent's 20 checkpoints. Sweeps alternate with bare commands that remove the
same fields from copies (``benchmarks.copies``), so that both run under the same conditions.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter, sleep
from typing import Any

from celery import Celery
from redis import Redis, RedisCluster

from benchmarks.copies import CHECKPOINTS, KEEP, bare_removals, fill, names_in_two_copies
from benchmarks.servers import cluster, valkey
from celery_ckpt import open_store
from celery_ckpt.retention.report import PruneReport
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.pruning.sweep import sweep
from celery_ckpt.store import CheckpointStore

#: Into how many parts the sweep is divided.
_TURNS = 20
_EVERYTHING = 10**9
#: Short enough to notice a stall, and long enough not to load the server.
_BETWEEN_PINGS = 0.002


@dataclass(frozen=True)
class Fleet:
    """The measurements, in seconds and bytes."""

    where: str
    agents: int
    #: A sweep that prunes all agents: in total, and per removed checkpoint.
    sweep: float
    removed: int
    each: float
    #: The same fields, removed by one HDEL each in pipelines.
    bare_each: float
    #: The next sweep, which has nothing to do, and a sweep of an empty store.
    idle_sweep: float
    idle_empty: float
    #: The longest wait of a client that only sends PING, during the sweep and before it.
    longest_stall: float
    longest_stall_before: float
    #: CPU time of the servers per swept agent.
    server_each: float
    #: The longest time that one script or command of the sweep blocked the server.
    longest_script: float
    #: Memory of an agent before the sweep, of each of its checkpoints, and of an agent with none.
    agent_bytes: float
    checkpoint_bytes: float

    @property
    def ratio(self) -> float:
        """The time per checkpoint, as a multiple of the pipelined removal."""
        return self.each / self.bare_each


def measure(url: str, where: str, agents: int) -> Fleet:
    """Fill an empty server with agents, and sweep them."""
    with open_store(url) as store, _clients(url) as nodes:
        context = _context(store)
        idle_empty = _timed_sweep(context)[0]
        empty = _memory(nodes)
        with _client(url) as client:
            fill(store, client, agents)
        full = _memory(nodes)
        before = _stall(url, lambda: _busy_nothing())[1]
        for node in nodes:
            node.config_set("slowlog-log-slower-than", 100)
            node.slowlog_reset()
        timed, stall = _stall(url, lambda: _alternate(context, url, nodes, agents))
        longest = max(
            (entry["duration"] for node in nodes for entry in node.slowlog_get(-1)), default=0
        )
        idle = _timed_sweep(context)[0]
        left = _memory(nodes)
    removed, twice = timed.report.checkpoints, len(names_in_two_copies(agents))
    agent_bytes = (full - empty) / (agents + twice)
    per_checkpoint = (full - left - twice * agent_bytes) / removed
    assert (timed.report.agents, removed) == (agents, agents * (CHECKPOINTS - KEEP))
    return Fleet(
        where, agents, timed.sweep, removed, timed.sweep / removed, timed.bare / timed.bare_removed,
        idle, idle_empty, stall, before, timed.server / agents, longest / 1e6, agent_bytes,
        per_checkpoint,
    )  # fmt: skip


@dataclass
class _Alternation:
    """Alternating sweeps and bare removals: how long they took, and what they removed."""

    sweep: float = 0.0
    #: CPU time of the servers for the sweeps.
    server: float = 0.0
    bare: float = 0.0
    bare_removed: int = 0
    report: PruneReport = field(default_factory=PruneReport)


def _alternate(context: AppContext, url: str, nodes: list[Any], agents: int) -> _Alternation:
    timed = _Alternation()
    with _client(url) as client:
        for removal in bare_removals(client, agents, _TURNS):
            start = perf_counter()
            timed.bare_removed += removal()
            timed.bare += perf_counter() - start
            cpu = _cpu(nodes)
            took, report = _timed_sweep(context, -(-agents // _TURNS))
            timed.server += _cpu(nodes) - cpu
            timed.sweep += took
            timed.report.include(report)
    return timed


def _context(store: CheckpointStore) -> AppContext:
    app = Celery("fleet", broker="memory://", set_as_current=False)
    app.conf.update(ckpt_store_url="memory://", ckpt_keep=KEEP)
    return AppContext(app, store)


def _timed_sweep(context: AppContext, limit: int = _EVERYTHING) -> tuple[float, PruneReport]:
    start = perf_counter()
    report = sweep(context, limit)
    return perf_counter() - start, report


def _busy_nothing() -> None:
    sleep(2)


# -- another client ------------------------------------------------------------------------------------


def _stall(url: str, act: Any) -> tuple[Any, float]:
    """Return the result of ``act``, and the longest wait of another client while it ran."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_ping, args=(url, theirs), daemon=True)
    process.start()
    ours.recv()
    result = act()
    ours.send("enough")
    longest: float = ours.recv()
    process.join()
    return result, longest


def _ping(url: str, pipe: Any) -> None:
    with ExitStack() as opened:
        nodes = opened.enter_context(_clients(url))
        for node in nodes:
            node.ping()
        pipe.send("ready")
        longest = 0.0
        while not pipe.poll():
            for node in nodes:
                start = perf_counter()
                node.ping()
                longest = max(longest, perf_counter() - start)
            sleep(_BETWEEN_PINGS)
        pipe.send(longest)


def _client(url: str) -> Any:
    if url.startswith("redis+cluster"):
        return RedisCluster.from_url(url.replace("redis+cluster", "redis").split(",")[0])
    return Redis.from_url(url)


@contextmanager
def _clients(url: str) -> Iterator[list[Any]]:
    """Yield a client for each node."""
    hosts = url.partition("://")[2].split(",")
    clients = [Redis.from_url(f"redis://{host.removesuffix('/0')}") for host in hosts]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def _cpu(nodes: list[Any]) -> float:
    times = (node.info("cpu") for node in nodes)
    return sum(time["used_cpu_user"] + time["used_cpu_sys"] for time in times)


def _memory(nodes: list[Any]) -> int:
    return sum(node.info("memory")["used_memory_dataset"] for node in nodes)


def main() -> None:
    """Measure one server and a cluster of three, and print both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    arguments = parser.parse_args()
    fleets = fleet(arguments.agents)
    if arguments.json:
        json.dump([asdict(one) for one in fleets], sys.stdout, indent=2)
        return
    from rich.console import Console

    from benchmarks.report import fleet_table

    Console(width=120).print(fleet_table(fleets))


def fleet(agents: int) -> list[Fleet]:
    """Return the measurements of one server and of a cluster."""
    with valkey() as url:
        one = measure(url, "one Valkey", agents)
    with cluster(3) as url:
        return [one, measure(url, "a cluster of three", agents)]


if __name__ == "__main__":
    main()
