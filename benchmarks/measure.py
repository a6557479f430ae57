"""How a contender is measured: it saves the work of an agent, and only the saves are timed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.work import Agent, Work


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    #: The iterations whose saves are reported, and which of them have a column in the table.
    points: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
    columns: tuple[int, ...] = (10, 100, 1000, 10_000)
    #: The iteration at which to load, list, prune and count bytes.
    read_at: int = 1000
    keep: int = 20
    short_agents: int = 8
    #: How many pairs of operations make up a ratio, and how many agents are pruned.
    rounds: int = 1500
    prunes: int = 5
    imports: int = 9
    #: How many batches of tasks are run, and how many workers killed.
    batches: int = 9
    kills: int = 3
    #: For how many seconds the scripts of workers that wait are counted.
    waiting_seconds: float = 20
    #: How many agents a sweep prunes.
    fleet: int = 100_000

    @property
    def last(self) -> int:
        """The last iteration."""
        return self.points[-1]


QUICK = Plan(
    points=(10, 20, 50, 100, 200), columns=(10, 100), read_at=100, short_agents=3, rounds=200, prunes=2,
    imports=3, batches=3, kills=1, waiting_seconds=4, fleet=500,
)  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """When to stop a contender that is too slow or stores too much."""

    save_seconds: float = 0.25
    total_seconds: float = 60
    list_seconds: float = 20
    stored_bytes: int = 2_500_000_000


BOUNDS = Bounds()


@dataclass
class Figures:
    """The measurements of a contender, in seconds and bytes. ``None``: not measured."""

    name: str
    kind: str
    note: str
    #: The median of the saves up to an iteration, by iteration.
    save: dict[int, float] = field(default_factory=dict)
    load: float | None = None
    list_all: float | None = None
    #: The list was not read to the end: it takes longer than ``list_all``.
    list_cut: bool = False
    #: Per removed checkpoint.
    prune: float | None = None
    stored: int | None = None
    message_bytes: int = 0
    stopped: str = ""


#: Is called with the progress of a contender, from 0 to 1.
Progress = Callable[[float], None]


def measure(contender: Contender, plan: Plan, progress: Progress) -> Figures:
    """Measure one contender."""
    figures = Figures(contender.name, contender.kind, contender.note)
    # The first agent pays for connections and caches.
    _short_agent(contender, 0)
    short = (_short_agent(contender, number) for number in range(1, plan.short_agents))
    figures.save[plan.points[0]] = median(chain.from_iterable(short))
    _Marathon(contender, plan, figures, progress).run()
    return figures


def _short_agent(contender: Contender, number: int) -> list[float]:
    """Return the durations of the saves of iterations 7 to 13."""
    agent = Agent(f"short-{number}")
    return [timed_save(contender, agent.work()) for _ in range(13)][6:]


class _Marathon:
    """One agent that works until the end of the plan, or until its contender is stopped."""

    def __init__(self, contender: Contender, plan: Plan, figures: Figures, progress: Progress) -> None:
        self._contender, self._plan, self._figures = contender, plan, figures
        self._progress = progress
        self._agent = Agent("long")
        self._times: list[float] = []
        self._total = 0.0
        self._stored_before = contender.stored_bytes() or 0

    def run(self) -> None:
        """Work, measure at each point, and prune if that was not done before."""
        while not self._is_over():
            work = self._agent.work()
            self._times.append(timed_save(self._contender, work))
            self._total += self._times[-1]
            if work.iteration in self._plan.points:
                self._at_point(work)
            if work.iteration % 50 == 0:
                self._progress(work.iteration / self._plan.last)
        if not self._contender.survives_prune and self._agent.iteration >= self._plan.read_at:
            self._prune()

    def _at_point(self, work: Work) -> None:
        point = work.iteration
        if point != self._plan.points[0]:
            self._figures.save[point] = median(self._times[-max(10, min(point // 10, 200)) :])
        stored = (self._contender.stored_bytes() or 0) - self._stored_before
        if point == self._plan.read_at:
            self._read(work, stored)
        self._stop_before_the_disk_is_full(stored)

    def _read(self, work: Work, stored: int) -> None:
        figures, contender, agent_id = self._figures, self._contender, work.agent_id
        figures.message_bytes = self._agent.message_bytes
        figures.stored = stored if stored > 0 else None
        contender.before_reading(work)
        load = _or_none(lambda: median(timed(contender.load_latest, agent_id) for _ in range(9)))
        figures.load = load
        figures.list_all = _or_none(self._time_of_list)
        if contender.survives_prune:
            self._prune()

    def _time_of_list(self) -> float:
        gc.collect()
        start = perf_counter()
        for _ in self._contender.list(self._agent.agent_id):
            if perf_counter() - start > BOUNDS.list_seconds:
                self._figures.list_cut = True
                break
        return perf_counter() - start

    def _prune(self) -> None:
        start = perf_counter()
        removed = _or_none(lambda: self._contender.prune(self._agent.agent_id, self._plan.keep))
        self._figures.prune = (perf_counter() - start) / removed if removed else None

    def _stop_before_the_disk_is_full(self, stored: int) -> None:
        """Stop a contender that stores ten times the bytes: its size grows with the square."""
        later = [point for point in self._plan.points if point > self._agent.iteration]
        if not later or stored < 10 * self._agent.message_bytes:
            return
        expected = stored * (later[0] / self._agent.iteration) ** 2
        if expected > BOUNDS.stored_bytes:
            self._stop(f"it would store {expected / 1e9:.0f} GB by iteration {later[0]:,}")

    def _is_over(self) -> bool:
        times = self._times
        if times and median(times[-5:]) > BOUNDS.save_seconds:
            self._stop(f"one save takes more than {BOUNDS.save_seconds * 1000:.0f} ms")
        if self._total > BOUNDS.total_seconds:
            self._stop(f"its saves took more than {BOUNDS.total_seconds:.0f} s")
        return bool(self._figures.stopped) or self._agent.iteration >= self._plan.last

    def _stop(self, reason: str) -> None:
        self._figures.stopped = f"stopped after {self._agent.iteration:,} iterations: {reason}"


def timed_save(contender: Contender, work: Work) -> float:
    """Return the duration of a save, without its preparation."""
    return timed(contender.save, contender.prepare(work))


def timed(action: Callable[..., Any], *arguments: Any) -> float:
    """Return the duration of a call."""
    start = perf_counter()
    action(*arguments)
    return perf_counter() - start


def _or_none(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except NotImplementedError:
        return None
