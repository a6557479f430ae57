"""Workers, two servers and running agents: what the faults happen to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path
from random import Random
from typing import Any

import psutil
from celery.result import AsyncResult

from tests.chaos.stores import KEPT, STORES
from tests.support.ledger import Ledger
from tests.support.ledger_pipe import piped
from tests.support.servers.valkey import Valkey
from tests.support.tasks.scenarios import MODULE, count
from tests.support.wait import until
from tests.support.workers.broker import BACKEND_DB, RedisBroker
from tests.support.workers.clocks import WorkerClock, remove_shared_memory
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import app_of
from tests.support.workers.processes import Pool, Worker

#: A short lease, but one that survives the pauses of a busy machine with two cores.
LEASE = 2.0
#: The default number of iterations of an agent, and the duration of each of its two calls.
ITERATIONS, SECONDS = 20, 0.1
_READY, _PROGRESS = 60.0, 90.0


@dataclass
class Fleet:
    """All processes and servers of a campaign."""

    directory: Path
    chance: Random
    broker: RedisBroker
    #: What the store runs on. The faults know which kind it is.
    store: Any
    #: The network in front of a standalone store.
    network: Any
    ledger: Ledger
    configuration: Configuration
    pool: Pool = "prefork"
    concurrency: int = 4
    iterations: int = ITERATIONS
    #: True if each worker has its own clock, which can be set.
    own_clocks: bool = False
    clocks: dict[str, WorkerClock] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    #: The main processes of all workers that ever existed.
    pids: list[int] = field(default_factory=list)
    results: list[AsyncResult] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: numbers(1))

    def add_worker(self) -> Worker:
        """Start a worker without waiting for it."""
        name, environment = f"worker{next(self._numbers)}", self.configuration.environment()
        if self.own_clocks:
            self.clocks[name] = WorkerClock(self.directory / f"{name}.clock")
            environment |= self.clocks[name].environment
        worker = Worker(
            self.directory,
            environment,
            ledger=self.ledger,
            pool=self.pool,
            concurrency=self.concurrency,
            name=name,
            # The clock is chosen when the process starts.
            forked=not self.own_clocks,
        )
        self.workers.append(worker.start())
        self.pids.append(worker.pid)
        return worker

    def wait_ready(self) -> None:
        """Wait until the workers that were started last are ready."""
        for worker in self.workers:
            if worker.awaits_ready:
                worker.wait_ready(_READY)

    def pick(self) -> Worker:
        """Return a random worker."""
        return self.chance.choice(self.workers)

    def top_up(self, open_runs: int) -> None:
        """Send agents until ``open_runs`` of them have not ended."""
        under_way = sum(not result.ready() for result in self.results[-4 * open_runs :])
        self.results += [count.delay(self.iterations, SECONDS) for _ in range(open_runs - under_way)]

    def wait_for_progress(self) -> None:
        """Wait for the next call of any agent."""
        mark = self.ledger.path.stat().st_size
        until(lambda: self.supervise() and b'"call"' in self._notes_since(mark), _PROGRESS, "progress")

    def supervise(self) -> bool:
        """Replace workers that have exited, as a process manager does.

        Celery's workers exit on their own if they acknowledge a message just when the connection to the
        broker is lost.
        """
        for worker in [worker for worker in self.workers if not worker.is_running()]:
            self.workers.remove(worker)
            self._note_dead_bodies()
            self.add_worker()
        return True

    def _note_dead_bodies(self) -> None:
        pids = {note.pid for note in self.ledger.notes(what="begin")}
        self.ledger.killed(*(pid for pid in pids if not psutil.pid_exists(pid)))

    def _notes_since(self, mark: int) -> bytes:
        with self.ledger.path.open("rb") as file:
            file.seek(mark)
            return file.read()


@contextmanager
def fleet(
    directory: Path,
    chance: Random,
    *,
    workers: int = 2,
    iterations: int = ITERATIONS,
    store: str = "alone",
    own_clocks: bool = False,
    conf: Mapping[str, Any] | None = None,
) -> Iterator[Fleet]:
    """Start servers, a network in front of the store, and workers. They are ready, and are
    removed afterwards.
    """
    with ExitStack() as running:
        broker = RedisBroker(running.enter_context(Valkey(directory / "broker", *KEPT)))
        servers, network, url = running.enter_context(STORES[store](directory / "store"))
        ledger = Ledger(directory / "ledger")
        configuration = Configuration(
            broker_url=broker.url(),
            backend_url=broker.server.url_of(BACKEND_DB),
            store_url=url,
            # A full disk must not keep the bodies from writing to the ledger.
            ledger=running.enter_context(piped(ledger)),
            include=(MODULE,),
            conf={"ckpt_lease_ttl": LEASE, **(conf or {})},
        )
        running.enter_context(app_of(configuration))
        made = Fleet(directory, chance, broker, servers, network, ledger, configuration)
        made.iterations, made.own_clocks = iterations, own_clocks
        running.callback(lambda: [remove_shared_memory(pid) for pid in made.pids if own_clocks])
        running.callback(lambda: [worker.close() for worker in made.workers])
        for _ in range(workers):
            made.add_worker()
        made.wait_ready()
        yield made
