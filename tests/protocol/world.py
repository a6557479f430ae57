"""A broker, a store, a clock and a result backend in which every single access is a step.

The code under test is the real one. It runs in a greenlet (see ``actors.py``) that pauses before each
access to the world, and continues when the scheduler says so. A greenlet that never continues has
crashed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from celery.states import READY_STATES, SUCCESS
from greenlet import getcurrent

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.records import RunRecord, RunStatus, Schedule
from celery_ckpt.runtime.broker.envelope import BEGUN_HEADER
from celery_ckpt.runtime.current import attempting
from celery_ckpt.stores.rules.deletion import needs_marker
from celery_ckpt.testing import FakeClock

#: The duration of a lease, in seconds.
LEASE = 10.0
#: The agent that all runs belong to.
AGENT = "agent"
#: How many calls each run makes.
CALLS = 2
#: The task that is called back when a run has succeeded.
HEARD = "heard"


@dataclass(frozen=True)
class Message:
    """A message in the queue. Its tag stays the same when it is delivered again."""

    tag: str
    headers: dict[str, Any]
    #: When a worker starts it, in seconds since 1970.
    due: float
    #: True if it was delivered before.
    is_redelivered: bool = False

    @property
    def run_id(self) -> str:
        return str(self.headers["id"])


@dataclass(frozen=True)
class Pause:
    """An actor is paused before a step, which it can take when it is ready."""

    before: str
    ready: Callable[[], bool] = lambda: True


def pause(before: str, ready: Callable[[], bool] = lambda: True) -> None:
    """Pause before a step, until the scheduler lets this actor continue."""
    parent = getcurrent().parent
    if parent is not None:
        parent.switch(Pause(before, ready))


class MachineClock:
    """The clock of the machine, in the world that was made last."""

    def follow(self, clock: FakeClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()


machine_clock = MachineClock()


class Broken(Exception):
    """The exception that a body fails with."""


@dataclass
class World:
    """Everything that outlives a process, and what must be true of it."""

    #: How many attempts of each run fail, and how often Celery retries.
    fails: int = 0
    max_retries: int = 0
    #: True if the calls are ``run.llm``.
    talks: bool = False
    #: It starts now, because Celery computes ETAs by the clock of the machine.
    clock: FakeClock = field(default_factory=lambda: FakeClock(datetime.now(UTC)))
    queue: deque[Message] = field(default_factory=deque)
    unacked: dict[str, Message] = field(default_factory=dict)
    #: The process that holds each message, while that process lives.
    holders: dict[str, object] = field(default_factory=dict)
    #: The runs whose messages were published, in that order.
    published: dict[str, None] = field(default_factory=dict)
    #: The runs whose messages no worker takes, until nothing else is left to do.
    unrouted: frozenset[str] = frozenset()
    #: How often a run was passed over.
    passes: int = 0
    #: How many messages of each run say that no worker has begun it.
    unbegun: Counter[str] = field(default_factory=Counter)
    #: The state and the result of each run in Celery's backend.
    results: dict[str, tuple[str, Any]] = field(default_factory=dict)
    callbacks: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    #: How often the body of each run has failed, and how often a run was resumed manually.
    failures: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    #: The runs that were deleted with their agent while their messages could arrive.
    deleted: set[str] = field(default_factory=set)
    #: How often the agent was deleted, and how often the store lost all of it.
    deletions: int = 0
    losses: int = 0
    #: The runs that were blocked when the store lost them: their messages had been acknowledged.
    untraceable: set[str] = field(default_factory=set)
    recorded: set[tuple[str, int]] = field(default_factory=set)
    #: The bodies that are being executed: actor, run, and how often leases had ended by then, because
    #: time had jumped or the store had lost them.
    bodies: dict[object, tuple[str, int]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    crashes: int = 0
    jumps: int = 0
    redeliveries: int = 0
    #: The process that has set when the watchdog checks the agent.
    deadline_is_of: str = ""
    #: How often no actor was ready, although something was open.
    waits: int = 0
    _tags: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.store = MemoryCheckpointStore(clock=self.clock)
        machine_clock.follow(self.clock)

    # -- the broker ----------------------------------------------------------------------------------

    def publish(self, headers: dict[str, Any], seconds: float) -> None:
        """Publish a message for a run, to be started after a delay."""
        tag, due = f"tag {next(self._tags)}", self.clock.now().timestamp() + seconds
        self.queue.append(Message(tag, headers, due))
        self.published[headers["id"]] = None
        self.unbegun[headers["id"]] += not (headers.get(BEGUN_HEADER) or headers.get("retries"))

    def has_message(self) -> bool:
        """True if a message can be started now."""
        return self._next() is not None

    def _next(self) -> Message | None:
        now = self.clock.now().timestamp()
        routed = (message for message in self.queue if message.run_id not in self.unrouted)
        return next((message for message in routed if message.due <= now), None)

    def taken(self) -> Message:
        """Return the next message. From now on, only the process that takes it has it."""
        message = self._next()
        assert message is not None
        self.queue.remove(message)
        return message

    def deliver(self, message: Message, to: object) -> None:
        """Record that a worker has the message: it is in ``unacked``."""
        self.unacked[message.tag] = message
        self.holders[message.tag] = to

    def died(self, holder: object) -> None:
        """Record that an actor died: no process touches its messages any more."""
        self.holders = {tag: who for tag, who in self.holders.items() if who is not holder}

    def restore_orphans(self) -> bool:
        """Restore messages as ``fetched.py`` does when no process has touched them for a while."""
        return any([self.restore(tag) for tag in list(self.unacked) if tag not in self.holders])

    def restore(self, tag: str) -> bool:
        """Put a message back, if it still exists."""
        message = self.unacked.pop(tag, None)
        if message is not None:
            self.queue.append(replace(message, is_redelivered=True))
        return message is not None

    def redeliver_all(self) -> None:
        """End the visibility timeout of every message, whether a worker processes it or not.

        Messages with an ETA are with workers as well: they stay there, and are also delivered again.
        """
        self.redeliveries += 1
        now = self.clock.now().timestamp()
        delayed = [message for message in self.queue if message.due > now]
        self.queue.extend(replace(message, is_redelivered=True) for message in delayed)
        for tag in list(self.unacked):
            self.restore(tag)

    # -- the result backend --------------------------------------------------------------------------

    def keep_result(self, run_id: str, state: str, result: Any) -> None:
        """Store the state that the caller sees. Celery's backends never replace a success."""
        known = self.state(run_id)
        if known == SUCCESS:
            return
        if known in READY_STATES and state in READY_STATES - {known}:
            self.wrong.append(f"{run_id} was reported as {known}, then as {state}")
        self.results[run_id] = state, result

    def state(self, run_id: str) -> str:
        """Return the state that the caller sees."""
        return self.results.get(run_id, ("PENDING", None))[0]

    @property
    def troubles(self) -> int:
        """Return how often something happened that excuses a repetition."""
        return self.crashes + self.jumps + self.losses

    # -- time ----------------------------------------------------------------------------------------

    def jump(self) -> None:
        """Expire all leases, as if every process had been frozen."""
        self.jumps += 1
        self.clock.advance(LEASE + 1)

    # -- what bodies do ------------------------------------------------------------------------------

    def begin(self, actor: object, run_id: str) -> None:
        """Begin a body. No other body of the same run may be active, unless leases ended since."""
        lost = self.jumps + self.losses
        for other, (theirs, lost_before) in self.bodies.items():
            if other is not actor and theirs == run_id and lost_before == lost:
                self.wrong.append(f"two bodies of {run_id} at once")
        attempt = attempting.get()
        # Its process may have been frozen since it got the lease.
        is_late = attempt is not None and attempt.held.lease.expires_at <= self.clock.now()
        self.bodies[actor] = run_id, lost - is_late
        self.order.append(run_id)

    def call(self, run_id: str, number: int) -> str:
        """Call a model: the operation that costs money.

        The process that has the lease must not repeat a recorded call. A process that was frozen until
        another one has taken the lease may do so once: it notices at its next write.
        """
        attempt = attempting.get()
        has_lease = attempt is None or attempt.held.lease.token == self.newest_token()
        if has_lease and (run_id, number) in self.recorded:
            self.wrong.append(f"call {number} of {run_id} was repeated although it was recorded")
        self.calls[run_id, number] += 1
        pause("the model answers")
        return f"{run_id}, call {number}"

    def reply(self, run_id: str, number: int) -> dict[str, str]:
        """Return the answer of a call as a message."""
        return {"role": "assistant", "content": self.call(run_id, number)}

    def delete(self) -> None:
        """Note which runs must not begin again, because the agent is about to be deleted."""
        self.deleted |= {run.run_id for run in self.store.runs(AGENT) if needs_marker(run)}
        self.deletions += 1

    def lose(self) -> None:
        """Lose everything that is in the store, as after a FLUSHALL."""
        self.losses += 1
        blocked = (run for run in self.store.runs(AGENT) if run.status is RunStatus.BLOCKED)
        self.untraceable |= {run.run_id for run in blocked}
        for kept in (self.store._agents, self.store._by_id, *self.store._schedules.values()):
            kept.clear()
        # A message that says that its run has not begun does not know of a copy that was begun.
        copied = {run_id for run_id, count in self.unbegun.items() if count > 1}
        self.recorded = {call for call in self.recorded if call[0] not in copied}

    def lose_message(self, run_id: str) -> None:
        """Lose the message of a run that is in the queue."""
        self.queue = deque(message for message in self.queue if message.run_id != run_id)

    def fail(self, run_id: str, retries: int) -> None:
        """Fail if this attempt must fail; the body is about to end."""
        if retries < self.fails:
            self.failures[run_id] += 1
            raise Broken(f"attempt after {retries} retries")

    def due_times(self) -> list[float]:
        """Return when the watchdog is due to look at an agent, in seconds since 1970."""
        return [due_at / 1e6 for due_at in self.store._schedules[Schedule.WATCHDOG].values()]

    def deadline(self) -> int | None:
        """Return when the watchdog is due to look at the agent, in microseconds since 1970."""
        return self.store._schedules[Schedule.WATCHDOG].get(AGENT)

    def etas(self) -> list[float]:
        """Return the times at which delayed messages are started."""
        return [message.due for message in self.queue if message.run_id not in self.unrouted]

    def newest_token(self) -> int:
        """Return the token of the newest lease."""
        return max((agent.lease.token for agent in self.store._agents.values()), default=0)

    def open_runs(self) -> list[RunRecord]:
        """Return the runs that are not settled, and can be."""
        return [run for run in self.store.activity(AGENT).open if not self.cannot_be_settled(run)]

    def cannot_be_settled(self, run: RunRecord) -> bool:
        """True if no process can settle the run.

        The store lost it. Its record was created again without the message, because the process that
        did so died, or because the run is blocked. The process that took the message next died with it.
        """
        messages = {message.run_id for message in (*self.queue, *self.unacked.values())}
        is_lost = not run.has_envelope and run.run_id not in messages
        return is_lost and self.losses > 0 and self.crashes > 0

    def unreported(self) -> set[str]:
        """Return the published runs whose outcome a process could have stored, and did not."""
        reported = {run for run in self.results if self.state(run) in READY_STATES}
        if self.losses and self.crashes:
            return set()  # the message may be lost too, with the worker that had taken it
        return {*self.published} - self.untraceable - reported
