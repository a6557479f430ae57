"""A fleet of agents: what a sweep costs, and what others notice.

``python -m benchmarks.fleet --agents 100000``; without a number, as ``make bench`` does it.

One agent is saved, with 20 checkpoints of a growing conversation, and copied under other names with
bare commands, to what the store would have written. A sweep keeps two of each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter, sleep
from typing import Any

from celery import Celery
from redis import Redis, RedisCluster

from benchmarks.servers import cluster, valkey
from celery_ckpt import Checkpoint, Conversation, Message, open_store
from celery_ckpt.maintenance import PruneReport, Rounds
from celery_ckpt.names import locator
from celery_ckpt.runtime.context import AppContext
from celery_ckpt.runtime.sweeping import sweep
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.redis.keys import FIELD, Keys

CHECKPOINTS, KEEP, MESSAGE_BYTES = 20, 2, 100
#: Of how many agents the same fields are removed with bare commands, and how many at once.
_BARE_AGENTS, _PIPELINE = 2000, 100
_EVERYTHING = 10**9
#: Often enough to notice, and seldom enough not to be what the server is busy with.
_BETWEEN_PINGS = 0.002


@dataclass(frozen=True)
class Fleet:
    """What was measured, in seconds and bytes."""

    where: str
    agents: int
    #: Of a sweep that has all agents to prune, and for each checkpoint that it removed.
    sweep: float
    removed: int
    each: float
    #: The same fields, removed by one HDEL each in pipelines.
    bare_each: float
    #: Of the next sweep, which has nothing to do; the same on an empty store.
    idle_sweep: float
    idle_empty: float
    #: The longest that a client which did nothing but PING had to wait meanwhile, and before.
    longest_stall: float
    longest_stall_before: float
    #: Time of the servers' processors, for each agent that was swept.
    server_each: float
    #: The longest time that the server was busy with one script or command of the sweep.
    longest_script: float
    #: Memory of an agent before the sweep, of each of its checkpoints, and of an agent with none.
    agent_bytes: float
    checkpoint_bytes: float

    @property
    def ratio(self) -> float:
        """Against the pipelined removal."""
        return self.each / self.bare_each


def measure(url: str, where: str, agents: int) -> Fleet:
    """Fill an empty server with a fleet, and sweep it."""
    with open_store(url) as store, _clients(url) as nodes:
        context = _context(store)
        idle_empty = _timed_sweep(context)[0]
        empty = _memory(nodes)
        _fill(store, url, agents)
        full = _memory(nodes)
        # With somebody who looks on, as with the sweep: there are not more than two cores for all.
        bare_each = _stall(url, lambda: _bare(url, min(agents, _BARE_AGENTS)))[0]
        before = _stall(url, lambda: _busy_nothing())[1]
        for node in nodes:
            node.config_set("slowlog-log-slower-than", 100)
            node.slowlog_reset()
        cpu = _cpu(nodes)
        (took, report), stall = _stall(url, lambda: _timed_sweep(context))
        cpu = _cpu(nodes) - cpu
        longest = max(
            (entry["duration"] for node in nodes for entry in node.slowlog_get(-1)), default=0
        )
        idle = _timed_sweep(context)[0]
        left = _memory(nodes)
    removed = report.checkpoints
    per_checkpoint = (full - left) / removed
    assert (report.agents, removed) == (agents, agents * (CHECKPOINTS - KEEP))
    return Fleet(
        where, agents, took, removed, took / removed, bare_each, idle, idle_empty, stall, before,
        cpu / agents, longest / 1e6, (full - empty) / agents, per_checkpoint,
    )  # fmt: skip


def _context(store: CheckpointStore) -> AppContext:
    app = Celery("fleet", broker="memory://", set_as_current=False)
    app.conf.update(ckpt_store_url="memory://", ckpt_keep=KEEP)
    return AppContext(app, store)


def _timed_sweep(context: AppContext) -> tuple[float, PruneReport]:
    start = perf_counter()
    report = sweep(context, _EVERYTHING)
    return perf_counter() - start, report


def _busy_nothing() -> None:
    sleep(2)


# -- filling -------------------------------------------------------------------------------------------


def _fill(store: CheckpointStore, url: str, agents: int) -> None:
    conversation = Conversation()
    for iteration in range(1, CHECKPOINTS + 1):
        conversation.append(Message.user(f"{iteration}".ljust(MESSAGE_BYTES)))
        store.save(Checkpoint.new("template", conversation, iteration))
    with _client(url) as client:
        keys = Keys("ckpt:")
        agent, log = keys.of("template", "agent", "log")
        fields, messages = client.hgetall(agent), client.lrange(log, 0, -1)
        for first in range(0, agents, _PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, min(first + _PIPELINE, agents)):
                _copy(pipeline, keys, f"agent-{number:07}", fields, messages)
            pipeline.execute()
    store.delete("template")


def _copy(pipeline: Any, keys: Keys, name: str, fields: Any, messages: list[bytes]) -> None:
    old, new = FIELD.encode() + locator("template").encode(), FIELD.encode() + locator(name).encode()
    agent, log = keys.of(name, "agent", "log")
    mapping = {field.replace(old, new): value.replace(old, new) for field, value in fields.items()}
    pipeline.zadd(keys.agents(locator(name)[0]), {f"{locator(name)}:{name}": 0})
    pipeline.zadd(keys.moments_of(name, Rounds.SWEEP), {name: 1})
    pipeline.hset(agent, mapping=mapping)
    pipeline.rpush(log, *messages)


def _bare(url: str, agents: int) -> float:
    """For each field, how long a pipelined removal takes."""
    with _client(url) as client:
        names = [f"agent-{number:07}" for number in range(agents)]
        copies: dict[bytes, list[bytes]] = {}
        for name in names:
            [key] = Keys("ckpt:").of(name, "agent")
            fields = client.hgetall(key)
            client.hset(copy := b"bare:" + key, mapping=fields)
            copies[copy] = sorted(f for f in fields if f.startswith(FIELD.encode()))[
                : CHECKPOINTS - KEEP
            ]
        start, items = perf_counter(), list(copies.items())
        for first in range(0, agents, _PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for key, fields_of_key in items[first : first + _PIPELINE]:
                for field in fields_of_key:
                    pipeline.hdel(key, field)
            pipeline.execute()
        took = perf_counter() - start
        for key in copies:
            client.delete(key)
    return took / (agents * (CHECKPOINTS - KEEP))


# -- looking on ----------------------------------------------------------------------------------------


def _stall(url: str, act: Any) -> tuple[Any, float]:
    """What ``act`` returns, and how long another client had to wait at most meanwhile."""
    context = multiprocessing.get_context("spawn")
    heard, told = context.Pipe()
    process = context.Process(target=_ping, args=(url, told), daemon=True)
    process.start()
    heard.recv()
    result = act()
    heard.send("enough")
    longest: float = heard.recv()
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
    """A client for each node."""
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
    """Both of them."""
    with valkey() as url:
        one = measure(url, "one Valkey", agents)
    with cluster(3) as url:
        return [one, measure(url, "a cluster of three", agents)]


if __name__ == "__main__":
    main()
