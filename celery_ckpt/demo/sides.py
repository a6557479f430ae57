"""The two sides, and what is done to both: one worker is killed, the next one is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from celery import Celery
from click import ClickException

from celery_ckpt.demo import ledger
from celery_ckpt.demo.cues import WORDS, Cue
from celery_ckpt.demo.ledger import Ledger
from celery_ckpt.demo.research import QUESTION
from celery_ckpt.demo.server import URL
from celery_ckpt.demo.story import Story
from celery_ckpt.demo.workers import Worker

#: In the midst of the model's answer in these iterations.
KILLED_IN, STOPPED_IN = 5, 7

Condition = Callable[[], bool]


@dataclass(frozen=True)
class Kind:
    """What one side is."""

    title: str
    app: str
    #: Its broker and result backend.
    database: int
    #: What it waits for when its worker was killed.
    waits_for: str
    variables: Mapping[str, str] = field(default_factory=dict)


DURABLE = Kind("celery_ckpt", "celery_ckpt.demo.durable", 0, "its lease to end")
#: SIGTERM begins a soft shutdown: of those Celery has, the one that gives a long task back in time.
PLAIN = Kind(
    "plain Celery task",
    "celery_ckpt.demo.plain",
    2,
    "the visibility timeout",
    {"REMAP_SIGTERM": "SIGQUIT"},
)


class Side:
    """An agent's run, its workers, and what becomes of them."""

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
        """Is there a worker that takes messages?"""
        return any(worker.is_ready() for worker in self._workers)

    def advance(self) -> None:
        """Read what has happened, and go on if what is waited for is true."""
        for note in self._ledger.news():
            self.story.add(note)
        self._check()
        if self._awaited():
            self._awaited = next(self._script, lambda: False)

    def close(self) -> None:
        """End all its workers."""
        for worker in self._workers:
            worker.kill()

    def _events(self) -> Iterator[Condition]:
        """What happens, in this order; yields what is waited for."""
        self._cue.give(KILLED_IN)
        self._start_worker(1)
        yield self._may_begin
        self._send()
        yield lambda: bool(self.story.attempts)

        others = [self._start_worker(2), self._start_worker(3)]
        yield lambda: self.story.is_amid(KILLED_IN, WORDS)
        victim = self._at_work()
        self._ledger.note("killed", worker=victim.number)
        victim.kill()
        self._cue.give(STOPPED_IN)

        def is_time_to_deploy() -> bool:
            return all(map(Worker.is_ready, others)) and self.story.is_amid(STOPPED_IN, WORDS)

        yield is_time_to_deploy
        outdated = self._at_work()
        self._ledger.note("told to stop", worker=outdated.number)
        outdated.stop()
        self._cue.give(None)

    def _at_work(self) -> Worker:
        return self._workers[self.story.now.worker - 1]

    def _start_worker(self, number: int) -> Worker:
        told = {URL: self._server, ledger.PATH: str(self._ledger.path), **self.kind.variables}
        self._workers.append(Worker(self.kind.app, number, self._folder, told))
        return self._workers[-1]

    def _send(self) -> None:
        url = f"{self._server}/{self.kind.database}"
        self._ledger.note("sent")
        with Celery(broker=url, set_as_current=False) as app:
            app.send_task("research", (QUESTION,))

    def _check(self) -> None:
        for worker in self._workers:
            worker.check()
        if self.story.failure:
            raise ClickException(f"{self.kind.title}: the run failed: {self.story.failure}")
