"""What it costs to wait for a disk or a replica: ``python -m benchmarks.durability``.

Measures a save of 2 KB and a recorded step on loopback. Each kind of waiting alternates with a plain
save to the same server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from statistics import median
from time import perf_counter

from benchmarks.pairs import Timed, alternate
from benchmarks.servers import valkey
from benchmarks.work import Agent
from celery_ckpt import CheckpointStore, open_store
from celery_ckpt.records import Step
from celery_ckpt.store import Durability

_ROUNDS = 200


def main() -> None:
    """Measure, and print a table."""
    print(f"{'what':42}{'save':>10}{'ratio':>8}{'step':>10}{'ratio':>8}")
    for name, plain, waiting in _cases():
        saves = alternate(_saves(waiting), _saves(plain), _ROUNDS, warm_up=10)
        steps = alternate(_steps(waiting), _steps(plain), _ROUNDS, warm_up=10)
        figures = "".join(
            f"{1000 * median(pair.ours):>7.2f} ms{pair.ratio:>7.1f}x" for pair in (saves, steps)
        )
        print(f"{name:42}{figures}")


def _cases() -> Iterator[tuple[str, CheckpointStore, CheckpointStore]]:
    """Yield a name, the store that waits, and the store that does not."""
    for sync in ("always", "everysec"):
        with valkey("--appendonly", "yes", "--appendfsync", sync) as url, _both(url, "fsync") as stores:
            yield f"Valkey, fsync, appendfsync {sync}", *stores
    with _replicated() as url, _both(url, "replica") as stores:
        yield "Valkey, replica", *stores
    with (
        tempfile.TemporaryDirectory(prefix="ckpt-bench-") as directory,
        _both(f"sqlite:///{directory}/store.db", "fsync") as stores,
    ):
        yield "SQLite, fsync", *stores


@contextmanager
def _replicated() -> Iterator[str]:
    with valkey() as url:
        port = url.partition("127.0.0.1:")[2].partition("/")[0]
        with valkey("--replicaof", "127.0.0.1", port):
            yield url


@contextmanager
def _both(url: str, durability: Durability) -> Iterator[tuple[CheckpointStore, CheckpointStore]]:
    with ExitStack() as stack:
        plain = stack.enter_context(open_store(url))
        yield plain, stack.enter_context(open_store(url, durability=durability))


def _saves(store: CheckpointStore) -> Timed:
    agent = Agent(f"saves {id(store)}")
    return lambda: _time(store.save, agent.work().checkpoint)


def _steps(store: CheckpointStore) -> Timed:
    agent_id, numbers = f"steps {id(store)}", count()

    def step() -> Step:
        value = {"content": "x" * 1000}
        return Step(agent_id=agent_id, run_id="run", key=str(next(numbers)), value=value)

    return lambda: _time(store.record_step, step())


def _time(write: Callable[[object], object], what: object) -> float:
    began = perf_counter()
    write(what)
    return perf_counter() - began


if __name__ == "__main__":
    main()
