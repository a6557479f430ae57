"""Workers, two servers and agents at work: what the faults happen to."""

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
from tests.support.workers.clocks import WorkerClock, sweep_up_after
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import app_of
from tests.support.workers.processes import Pool, Worker

#: A lease that ends soon, but not because a machine with two cores was busy for a moment.
LEASE = 2.0
#: How many turns an agent has if nobody says otherwise, and how long each of its two calls takes.
TURNS, SECONDS = 20, 0.1
_READY, _PROGRESS = 60.0, 90.0


@dataclass
class Fleet:
    """Everything that runs."""

    directory: Path
    chance: Random
    broker: RedisBroker
    #: What the store is on; the faults know which kind.
    store: Any
    #: What lies before a store that is alone.
    network: Any
    ledger: Ledger
    configuration: Configuration
    pool: Pool = "prefork"
    concurrency: int = 4
    turns: int = TURNS
    #: Has each worker a clock of its own, which can be set?
    own_clocks: bool = False
    clocks: dict[str, WorkerClock] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    #: Of the main processes of all workers that there ever were.
    pids: list[int] = field(default_factory=list)
    results: list[AsyncResult] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: numbers(1))

    def add_worker(self) -> Worker:
        """Start one, without waiting."""
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
            # Whose clock it is is settled when the process begins.
            forked=not self.own_clocks,
        )
        self.workers.append(worker.start())
        self.pids.append(worker.pid)
        return worker

    def wait_ready(self) -> None:
        """Wait until those that were started last are ready."""
        for worker in self.workers:
            if worker.awaits_ready:
                worker.wait_ready(_READY)

    def pick(self) -> Worker:
        """Some worker."""
        return self.chance.choice(self.workers)

    def top_up(self, open_runs: int) -> None:
        """Send agents until so many are not done with."""
        under_way = sum(not result.ready() for result in self.results[-4 * open_runs :])
        self.results += [count.delay(self.turns, SECONDS) for _ in range(open_runs - under_way)]

    def wait_for_progress(self) -> None:
        """Wait until an agent calls something, from now on."""
        mark = self.ledger.path.stat().st_size
        until(lambda: self.supervise() and b'"call"' in self._notes_since(mark), _PROGRESS, "progress")

    def supervise(self) -> bool:
        """Replace workers that have ended, as a process manager does. Celery's own end by themselves
        if they acknowledge a message in the moment in which the broker's connection is lost.
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
    turns: int = TURNS,
    store: str = "alone",
    own_clocks: bool = False,
    conf: Mapping[str, Any] | None = None,
) -> Iterator[Fleet]:
    """Servers, a network before the store, and workers that are ready. Nothing stays behind."""
    with ExitStack() as running:
        broker = RedisBroker(running.enter_context(Valkey(directory / "broker", *KEPT)))
        servers, network, url = running.enter_context(STORES[store](directory / "store"))
        ledger = Ledger(directory / "ledger")
        configuration = Configuration(
            broker_url=broker.url(),
            backend_url=broker.server.url_of(BACKEND_DB),
            store_url=url,
            # A disk that is full is to keep nobody from saying what they do.
            ledger=running.enter_context(piped(ledger)),
            include=(MODULE,),
            conf={"ckpt_lease_ttl": LEASE, **(conf or {})},
        )
        running.enter_context(app_of(configuration))
        made = Fleet(directory, chance, broker, servers, network, ledger, configuration)
        made.turns, made.own_clocks = turns, own_clocks
        running.callback(lambda: [sweep_up_after(pid) for pid in made.pids if own_clocks])
        running.callback(lambda: [worker.close() for worker in made.workers])
        for _ in range(workers):
            made.add_worker()
        made.wait_ready()
        yield made
