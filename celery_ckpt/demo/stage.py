"""The show: a server and both sides, from the first worker to the second answer.

The same happens to both sides: one worker is killed, the next one is stopped by a deploy. Signals do
not interrupt anything: they are noted, and checked between two steps. So everything that was started is
known and has ended before the folder with its files is deleted.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from celery import Celery
from click import ClickException

from celery_ckpt.demo import Stopped, ledger
from celery_ckpt.demo.ledger import WORDS, Cue, Ledger, Story
from celery_ckpt.demo.processes import URL, Server, Worker
from celery_ckpt.demo.research import QUESTION

#: Twice what two busy cores need.
DEADLINE_SECONDS = 90.0
_LOOK_EVERY = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: A worker is killed, and the next one stopped, in the middle of the model's reply in these iterations.
KILLED_IN, STOPPED_IN = 5, 7

Condition = Callable[[], bool]


@dataclass(frozen=True)
class Kind:
    """What distinguishes one side."""

    title: str
    app: str
    #: The database of its broker and result backend.
    database: int
    #: What it waits for after its worker was killed.
    waits_for: str
    variables: Mapping[str, str] = field(default_factory=dict)


DURABLE = Kind("celery_ckpt", "celery_ckpt.demo.durable", 0, "its lease to end")
#: SIGTERM begins a soft shutdown: the one of Celery's shutdowns that requeues a long task in time.
PLAIN = Kind(
    "plain Celery task",
    "celery_ckpt.demo.plain",
    2,
    "the visibility timeout",
    {"REMAP_SIGTERM": "SIGQUIT"},
)


class Side:
    """One run of the agent, its workers, and what happens to them."""

    def __init__(self, kind: Kind, server_url: str, folder: Path, may_begin: Condition) -> None:
        self.kind, self.story = kind, Story()
        self._folder, self._server, self._may_begin = folder, server_url, may_begin
        self._ledger = Ledger(folder / f"{kind.app}.ledger")
        self._ledger.path.touch()
        self._cue = Cue(self._ledger.path)
        self._workers: list[Worker] = []
        self._script = self._events()
        self._awaited: Condition = lambda: True

    def is_ready(self) -> bool:
        """True if a worker takes messages."""
        return any(worker.is_ready() for worker in self._workers)

    def advance(self) -> None:
        """Read the new notes, and continue the script if the awaited condition is true."""
        for note in self._ledger.news():
            self.story.add(note)
        for worker in self._workers:
            worker.check()
        if self.story.failure:
            raise ClickException(f"{self.kind.title}: the run failed: {self.story.failure}")
        if self._awaited():
            self._awaited = next(self._script, lambda: False)

    def close(self) -> None:
        """Kill all workers of this side."""
        for worker in self._workers:
            worker.kill()

    def _events(self) -> Iterator[Condition]:
        """Do what happens to this side, in order; yield each condition to wait for."""
        self._cue.give(KILLED_IN)
        self._start_worker(1)
        yield self._may_begin
        self._ledger.note("sent")
        with Celery(broker=f"{self._server}/{self.kind.database}", set_as_current=False) as app:
            app.send_task("research", (QUESTION,))
        yield lambda: bool(self.story.attempts)

        others = [self._start_worker(2), self._start_worker(3)]
        yield lambda: self.story.is_streaming(KILLED_IN, WORDS)
        victim = self._at_work()
        self._ledger.note("killed", worker=victim.number)
        victim.kill()
        self._cue.give(STOPPED_IN)

        def is_time_to_deploy() -> bool:
            return all(map(Worker.is_ready, others)) and self.story.is_streaming(STOPPED_IN, WORDS)

        yield is_time_to_deploy
        outdated = self._at_work()
        self._ledger.note("stopped", worker=outdated.number)
        outdated.stop()
        self._cue.give(None)

    def _at_work(self) -> Worker:
        return self._workers[self.story.now.worker - 1]

    def _start_worker(self, number: int) -> Worker:
        own = {URL: self._server, ledger.PATH: str(self._ledger.path), **self.kind.variables}
        self._workers.append(Worker(self.kind.app, number, self._folder, own))
        return self._workers[-1]


def show(look: Callable[[list[Side]], None], check: Callable[[], None]) -> list[Side]:
    """Run both sides to their answers, and call ``look`` with them many times a second.

    ``check`` may raise to stop the show. Nothing is left behind in any case.

    Raises:
        Stopped: ``check`` saw a signal.
        ClickException: something went wrong.
    """
    with TemporaryDirectory(prefix="celery-ckpt-demo-") as name, ExitStack() as running:
        folder = Path(name)
        server = Server(folder)
        running.callback(server.process.kill)
        for _ in _ticks(check):
            _check(server)
            if server.is_ready():
                break
        sides: list[Side] = []

        def are_ready() -> bool:
            return all(side.is_ready() for side in sides)

        # Neither side begins before both are ready.
        for kind in (DURABLE, PLAIN):
            sides.append(Side(kind, server.url, folder, are_ready))
            running.callback(sides[-1].close)
        for _ in _ticks(check):
            _check(server)
            for side in sides:
                side.advance()
            look(sides)
            if all(side.story.is_over for side in sides):
                return sides
    raise ClickException(f"The demo did not finish within {DEADLINE_SECONDS:.0f} seconds.")


@contextmanager
def signals_noted() -> Iterator[Callable[[], None]]:
    """Note signals. Yields a function that raises ``Stopped`` once there was one."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    def check() -> None:
        if noted:
            raise Stopped(noted[0])

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield check
    finally:
        # After a first signal, others may follow: they must not interrupt the end of the process.
        if not noted:
            for number, handler in before.items():
                signal.signal(number, handler)


def _ticks(check: Callable[[], None]) -> Iterator[None]:
    """Yield at regular intervals, until a signal arrives or the deadline has passed."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        check()
        yield
        time.sleep(_LOOK_EVERY)


def _check(server: Server) -> None:
    if not server.process.is_running():
        raise ClickException(f"Valkey exited unexpectedly:\n{server.process.log().strip()}")
