"""Which actor takes the next step: a fixed order, except for the deviations that an exploration
chooses.

In a schedule without deviations, each actor continues until it must wait. A deviation happens before a
certain step: another actor goes first, the current actor crashes, every message is delivered again, or
all leases expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from greenlet import greenlet

from tests.protocol.actors import Process
from tests.protocol.invariants import violations
from tests.protocol.world import Pause, World

#: More steps than any schedule needs.
_TOO_MANY = 2_000


@dataclass
class Actor:
    """A process that does something, paused before its next step."""

    name: str
    process: Process
    act: Callable[[], None]
    #: True if another process replaces it after a crash.
    is_replaced: bool = True
    paused_at: Pause | None = None
    body: Any = None

    def start(self, world: World) -> None:
        self.process.enter(world)
        self.body = greenlet(self.act)
        self.step(world)

    def step(self, world: World) -> None:
        """Take the step that the actor is paused before. Each step takes some time."""
        world.clock.advance(1e-6)
        paused_at = self.body.switch()
        self.paused_at = None if self.body.dead else paused_at

    @property
    def can_go(self) -> bool:
        return self.paused_at is not None and self.paused_at.ready()


#: What happens before a step: the name of the actor that goes first, or one of these.
CRASH, REDELIVER, JUMP = "crash", "redeliver", "jump"
Deviations = Mapping[int, str]


@dataclass
class Execution:
    """One schedule, from the beginning to the end."""

    actors: list[Actor]
    deviations: Deviations
    world: World
    #: For each step: its actor, its name, and the other actors that were ready.
    steps: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def run(self) -> Execution:
        """Let the actors act until none of them has anything left to do."""
        for actor in self.actors:
            actor.start(self.world)
        current = self.actors[0]
        while chosen := self._next(current):
            current = self._take(chosen)
            if len(self.steps) > _TOO_MANY:
                self.world.wrong.append("it does not end")
                break
        self.world.wrong += violations(self.world)
        return self

    def _next(self, current: Actor) -> Actor | None:
        able = [actor for actor in self.actors if actor.can_go]
        if not able:
            return self._next(current) if self._time_passes() else None
        return current if current in able else able[0]

    def _time_passes(self) -> bool:
        """Advance the clock to the next due time if no actor is ready and something is still open."""
        if self.world.restore_orphans():
            return True
        open_runs = {run.run_id for run in self.world.open_runs()}
        is_open = bool(open_runs)
        if self.world.unrouted and open_runs <= self.world.unrouted:
            self.world.unrouted = frozenset()
            return True
        due_times, etas = self.world.due_times() if is_open else [], self.world.etas()
        if not due_times + etas:
            return False
        due_at = min(due_times + etas)
        # Only a watchdog continues it.
        self.world.waits += due_at not in etas
        self.world.clock.advance(max(0.0, due_at - self.world.clock.now().timestamp()) + 0.001)
        return True

    def _take(self, actor: Actor) -> Actor:
        """Let an actor take its step, unless a deviation precedes it. Return the next actor."""
        others = [other.name for other in self.actors if other.can_go and other is not actor]
        assert actor.paused_at is not None
        deviation = self.deviations.get(len(self.steps))
        self.steps.append((actor.name, actor.paused_at.before, others))
        if deviation == CRASH:
            self._crash(actor)
        elif deviation == REDELIVER:
            self.world.redeliver_all()
        elif deviation == JUMP:
            self.world.jump()
        else:
            by_name = {each.name: each for each in self.actors}
            actor = by_name[deviation or actor.name]
            actor.step(self.world)
        return actor

    def _crash(self, actor: Actor) -> None:
        self.world.crashes += 1
        self.world.died(actor.process)
        # It never continues; everything that its process had in memory is lost.
        for each in [one for one in self.actors if one.process is actor.process]:
            _abandoned.append(each.body)
            each.paused_at = None
            if each.is_replaced:
                each.start(self.world)


#: Greenlets that never continue. If they were collected, an exception would be raised in them, and they
#: would act on it.
_abandoned: list[Any] = []


def alternatives(execution: Execution, after: int = -1) -> Iterator[tuple[int, str]]:
    """Return the deviations that are possible after a certain step of an execution."""
    for number, (_, _, others) in enumerate(execution.steps):
        if number > after:
            yield from ((number, what) for what in (CRASH, REDELIVER, JUMP, *others))
