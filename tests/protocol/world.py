"""A broker, a store, a clock and a result backend, in which every single access is a step.

The code under test is the real one. Whoever runs it does so in a greenlet (see ``actors.py``) that
stops before each access to the world, and goes on when the scheduler says so, or never: it has crashed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from celery.states import READY_STATES, SUCCESS
from greenlet import getcurrent

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.records import RunRecord, Schedule
from celery_ckpt.testing import FakeClock

#: How long a lease lasts, in seconds.
LEASE = 10.0
#: The agent that all runs are for.
AGENT = "agent"
#: How many calls each of them makes.
CALLS = 2
#: The task that is called back when a run has succeeded.
HEARD = "heard"


@dataclass(frozen=True)
class Message:
    """What lies in the queue. The tag stays the same when it is delivered again."""

    tag: str
    headers: dict[str, Any]
    #: When a worker begins it, in seconds since 1970.
    due: float

    @property
    def run_id(self) -> str:
        return str(self.headers["id"])


@dataclass(frozen=True)
class Pause:
    """An actor stands before a step, which it can take once it is ready."""

    before: str
    ready: Callable[[], bool] = lambda: True


def pause(before: str, ready: Callable[[], bool] = lambda: True) -> None:
    """Stop before a step, until the scheduler lets this actor go on."""
    parent = getcurrent().parent
    if parent is not None:
        parent.switch(Pause(before, ready))


class Broken(Exception):
    """What a body fails with."""


@dataclass
class World:
    """Everything that outlives a process, and what must be true of it."""

    #: How many attempts at each run fail, and how often Celery tries again.
    fails: int = 0
    max_retries: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    queue: deque[Message] = field(default_factory=deque)
    unacked: dict[str, Message] = field(default_factory=dict)
    #: Who has a message, while that process lives.
    holders: dict[str, object] = field(default_factory=dict)
    #: The runs of which a message was published.
    published: set[str] = field(default_factory=set)
    #: The state and the result of each run, as Celery's backend has them.
    results: dict[str, tuple[str, Any]] = field(default_factory=dict)
    callbacks: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    #: How often the body of each run has failed, and how often somebody sent it again by hand.
    failures: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    is_deleted: bool = False
    #: The runs that had ended when their agent was deleted, and nobody but their record knew.
    untold: set[str] = field(default_factory=set)
    recorded: set[tuple[str, int]] = field(default_factory=set)
    #: The bodies that are being executed: actor, run, and how often time had jumped when it began.
    bodies: dict[object, tuple[str, int]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    crashes: int = 0
    jumps: int = 0
    redeliveries: int = 0
    #: How often nobody had anything to do, although something was open.
    waits: int = 0
    _tags: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.store = MemoryCheckpointStore(clock=self.clock)

    # -- the broker ----------------------------------------------------------------------------------

    def publish(self, headers: dict[str, Any], seconds: float) -> None:
        """A message for a run, to be begun so much later."""
        tag, due = f"tag {next(self._tags)}", self.clock.now().timestamp() + seconds
        self.queue.append(Message(tag, headers, due))
        self.published.add(headers["id"])

    def has_message(self) -> bool:
        """Is there one to be begun now?"""
        return self._next() is not None

    def _next(self) -> Message | None:
        now = self.clock.now().timestamp()
        return next((message for message in self.queue if message.due <= now), None)

    def taken(self) -> Message:
        """The next message, which is nowhere but in the hands of whoever takes it."""
        message = self._next()
        assert message is not None
        self.queue.remove(message)
        return message

    def deliver(self, message: Message, to: object) -> None:
        """A message is with a worker, and in ``unacked``."""
        self.unacked[message.tag] = message
        self.holders[message.tag] = to

    def died(self, holder: object) -> None:
        """Nobody touches its messages any more."""
        self.holders = {tag: who for tag, who in self.holders.items() if who is not holder}

    def restore_orphans(self) -> bool:
        """What ``fetched.py`` does once nobody has touched a message for a while."""
        return any([self.restore(tag) for tag in list(self.unacked) if tag not in self.holders])

    def restore(self, tag: str) -> bool:
        """Put a message back, if it is still there."""
        message = self.unacked.pop(tag, None)
        if message is not None:
            self.queue.append(message)
        return message is not None

    def redeliver_all(self) -> None:
        """The visibility timeout of every message is over, whether somebody works on it or not. Those
        that are not to be begun yet lie with workers, too: there they stay, and come back as well.
        """
        self.redeliveries += 1
        now = self.clock.now().timestamp()
        self.queue.extend([message for message in self.queue if message.due > now])
        for tag in list(self.unacked):
            self.restore(tag)

    # -- the result backend --------------------------------------------------------------------------

    def keep_result(self, run_id: str, state: str, result: Any) -> None:
        """What whoever waits for a run is told. Celery's backends replace no success."""
        known = self.state(run_id)
        if known == SUCCESS:
            return
        if known in READY_STATES and state in READY_STATES - {known}:
            self.wrong.append(f"{run_id} was told to be {known}, and then {state}")
        self.results[run_id] = state, result

    def state(self, run_id: str) -> str:
        """What whoever asks for a run is told."""
        return self.results.get(run_id, ("PENDING", None))[0]

    @property
    def troubles(self) -> int:
        """How often something happened that excuses a repetition."""
        return self.crashes + self.jumps

    # -- time ----------------------------------------------------------------------------------------

    def jump(self) -> None:
        """All leases end, as if everybody had been frozen."""
        self.jumps += 1
        self.clock.advance(LEASE + 1)

    # -- what bodies do ------------------------------------------------------------------------------

    def begin(self, actor: object, run_id: str) -> None:
        """A body begins. Nobody else may be in one of the same run, unless time has jumped since."""
        for other, (theirs, jumps) in self.bodies.items():
            if other is not actor and theirs == run_id and jumps == self.jumps:
                self.wrong.append(f"two bodies of {run_id} at once")
        self.bodies[actor] = run_id, self.jumps
        self.order.append(run_id)

    def call(self, run_id: str, number: int) -> str:
        """A model is called: the very thing that costs money."""
        if (run_id, number) in self.recorded:
            self.wrong.append(f"call {number} of {run_id} was made again although it was recorded")
        self.calls[run_id, number] += 1
        pause("the model answers")
        return f"{run_id}, call {number}"

    def forget(self) -> None:
        """The agent is about to be deleted: what comes after it begins from nothing."""
        self.untold |= {run.run_id for run in self.open_runs() if run.status.is_final}
        self.recorded.clear()
        self.calls.clear()
        self.is_deleted = True

    def fail(self, run_id: str, retries: int) -> None:
        """A body is about to end: does it fail?"""
        if retries < self.fails:
            self.failures[run_id] += 1
            raise Broken(f"attempt after {retries} retries")

    def due_times(self) -> list[float]:
        """When the watchdog is to look at some agent, in seconds since 1970."""
        return [due_at / 1e6 for due_at in self.store._schedules[Schedule.WATCHDOG].values()]

    def etas(self) -> list[float]:
        """When messages that are not to be begun yet are."""
        return [message.due for message in self.queue]

    def newest_token(self) -> int:
        """The token of whoever got a lease last."""
        return max((agent.lease.token for agent in self.store._agents.values()), default=0)

    def open_runs(self) -> list[RunRecord]:
        """The runs that are not settled, and can be."""
        return [run for run in self.store.activity(AGENT).open if not self.is_beyond_help(run)]

    def is_beyond_help(self, run: RunRecord) -> bool:
        """Its agent was deleted. Whoever made its record anew died before the message was in it, and
        whoever took that message next died with it.
        """
        messages = {message.run_id for message in (*self.queue, *self.unacked.values())}
        is_lost = not run.has_envelope and run.run_id not in messages
        return is_lost and self.is_deleted and self.crashes > 1
