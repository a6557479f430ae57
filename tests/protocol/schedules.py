"""Which actor takes the next step: in order, but for the deviations that an exploration chooses.

A schedule without deviations lets each actor go on until it has to wait. A deviation happens before a
certain step: another actor goes first, the one whose turn it is crashes, every message is delivered
again, or all leases end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from greenlet import greenlet

from tests.protocol.actors import Process
from tests.protocol.invariants import judged
from tests.protocol.world import Pause, World

#: More steps than any schedule needs.
_TOO_MANY = 2_000


@dataclass
class Actor:
    """A process doing something, standing before its next step."""

    name: str
    process: Process
    act: Callable[[], None]
    #: Does another take its place when it crashes?
    comes_back: bool = True
    stands: Pause | None = None
    body: Any = None

    def start(self, world: World) -> None:
        self.process.enter(world)
        self.body = greenlet(self.act)
        self.step()

    def step(self) -> None:
        """Take the step that it stands before."""
        stands = self.body.switch()
        self.stands = None if self.body.dead else stands

    @property
    def can_go(self) -> bool:
        return self.stands is not None and self.stands.ready()


#: What happens before a step: the name of the actor that goes first, or one of these.
CRASH, REDELIVER, JUMP = "crash", "redeliver", "jump"
Deviations = Mapping[int, str]


@dataclass
class Execution:
    """One schedule, from the beginning to the end."""

    actors: list[Actor]
    deviations: Deviations
    world: World
    #: At each step: whose it was, what it was, and who else could have gone.
    steps: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def run(self) -> Execution:
        """Let everybody act until all is quiet."""
        for actor in self.actors:
            actor.start(self.world)
        current = self.actors[0]
        while chosen := self._next(current):
            current = self._take(chosen)
            if len(self.steps) > _TOO_MANY:
                self.world.wrong.append("it does not end")
                break
        self.world.wrong += judged(self.world)
        return self

    def _next(self, current: Actor) -> Actor | None:
        able = [actor for actor in self.actors if actor.can_go]
        if not able:
            return self._next(current) if self._time_passes() else None
        return current if current in able else able[0]

    def _time_passes(self) -> bool:
        """Nobody has anything to do now: wait for the next moment, if something is still open."""
        if self.world.restore_orphans():
            return True
        is_open = bool(self.world.open_runs())
        watched, etas = self.world.due_times() if is_open else [], self.world.etas()
        if not watched + etas:
            return False
        moment = min(watched + etas)
        # Nothing but a watchdog will go on with it.
        self.world.waits += moment not in etas
        self.world.clock.advance(max(0.0, moment - self.world.clock.now().timestamp()) + 0.001)
        return True

    def _take(self, actor: Actor) -> Actor:
        """Let an actor take its step, unless something comes between; returns who goes on."""
        others = [other.name for other in self.actors if other.can_go and other is not actor]
        assert actor.stands is not None
        deviation = self.deviations.get(len(self.steps))
        self.steps.append((actor.name, actor.stands.before, others))
        if deviation == CRASH:
            self._crash(actor)
        elif deviation == REDELIVER:
            self.world.redeliver_all()
        elif deviation == JUMP:
            self.world.jump()
        else:
            by_name = {each.name: each for each in self.actors}
            actor = by_name[deviation or actor.name]
            actor.step()
        return actor

    def _crash(self, actor: Actor) -> None:
        self.world.crashes += 1
        self.world.died(actor.process)
        # Never resumed; what its process had in memory is gone.
        _abandoned.append(actor.body)
        actor.stands = None
        if actor.comes_back:
            actor.start(self.world)


#: Greenlets that are never resumed. Collected, they would be thrown an exception, and act on it.
_abandoned: list[Any] = []


def alternatives(execution: Execution, after: int = -1) -> Iterator[tuple[int, str]]:
    """The deviations that an execution leaves open behind a certain step."""
    for number, (_, _, others) in enumerate(execution.steps):
        if number > after:
            yield from ((number, what) for what in (CRASH, REDELIVER, JUMP, *others))
