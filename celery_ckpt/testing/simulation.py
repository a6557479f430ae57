"""One run from its first attempt to its end, in one process, disturbed at a chosen place.

The store is in memory. A kill is simulated: from that write on, nothing of the attempt is written any
more. A hand-off is what a worker that shuts down does, without the message.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, NoReturn

from celery_ckpt.clock import system_clock
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.records import Lease, RunRecord, Step
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.attempt.execution import work
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.lease_renewer import HeldLease
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.strategies import Never
from celery_ckpt.testing.faults import Fault, FaultyStore
from celery_ckpt.usage import Usage

_AGENT = _RUN = "crash_everywhere"
_TTL = 3600.0
#: A run that is handed off so often in a row and gets no further never ends.
_MOST_IDLE_ATTEMPTS = 3

#: What is left of a run: ``conversation`` (its messages), ``state``, ``metadata`` and ``iteration`` of
#: its last checkpoint; ``result`` and ``status`` of its record.
End = dict[str, Any]


class _Killed(BaseException):
    """Stands for SIGKILL: nothing is written after it."""


class _HandedOff(BaseException):
    """The run is back in its queue, and this attempt is over."""


class _CallBook(MemoryCheckpointStore):
    """A store that remembers which calls were recorded, also when it has dropped their steps."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded: list[tuple[int, str]] = []

    def record_step(self, step: Step, lease: Lease | None = None, *, paid: Usage | None = None) -> None:
        super().record_step(step, lease, paid=paid)
        self._recorded.append((step.iteration, step.name))

    @property
    def recorded(self) -> Counter[tuple[int, str]]:
        """How often a call of that name was recorded in that iteration."""
        return Counter(self._recorded)


class _MortalStore(FaultyStore):
    """The store as one process sees it, which dies at a chosen write."""

    def __init__(self, life: SimulatedRun) -> None:
        super().__init__(life.store, life.fault)
        #: Writes are counted over all attempts.
        self.journal = life.journal
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        self._stay_dead()
        return super().__getattr__(name)

    def _begin(self, what: str) -> int:
        self._stay_dead()
        return super()._begin(what)

    def _happen(self, number: int, when: str) -> None:
        try:
            super()._happen(number, when)
        except _Killed:
            self.is_dead = True
            raise

    def _stay_dead(self) -> None:
        if self.is_dead:
            raise _Killed


class _Attempt(Attempt):
    """An attempt that knows where it can be handed off, and is where its life says so."""

    def __init__(self, life: SimulatedRun, store: _MortalStore, *args: Any) -> None:
        super().__init__(*args)
        self._life, self._store = life, store
        self._has_ended_iteration = False

    def emit(self, run: AgentRun, event: CheckpointEvent) -> None:
        super().emit(run, event)
        self._has_ended_iteration = event is CheckpointEvent.ITERATION

    def check(self, run: AgentRun) -> None:
        """As in a worker that shuts down from the chosen place on."""
        super().check(run)
        if not self.context.settings.hand_off:
            return
        is_end, self._has_ended_iteration = self._has_ended_iteration, False
        if self._life.is_to_stop_here():
            self._life.where = self._place(run, is_end)
            raise self._stopped("crash_everywhere")
        if self.stop is not None:
            raise self.stop

    def _place(self, run: AgentRun, is_end: bool) -> str:
        if is_end:
            return f"after iteration {run.iteration}"
        where = f"in iteration {run.iteration}" if run.iteration else "before the first iteration"
        return f"{where}, after {self._life.write(self._store.writes)}"

    def iteration_ended(self, run: AgentRun) -> None:
        """As with ``iterations_per_task=1``, if that is to be tried."""
        super().iteration_ended(run)
        if isinstance(self.strategy, Never):
            return
        self._life.passed_iterations += 1
        if self._life.is_one_by_one:
            self._life.where = "after every iteration"
            raise self._stopped("crash_everywhere")

    def release(self, record: RunRecord, due_in: float, *, patience: float | None = None) -> None:
        """Give up the lease. Nothing is sent: the life makes the next attempt."""
        if not self._store.is_dead:
            super().release(record, due_in, patience=patience)
            raise _HandedOff


class SimulatedRun:
    """One run, from its beginning to its end, over all its attempts."""

    def __init__(
        self,
        task: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        fault: Fault | None = None,
        stop_at: int | None = None,
        is_one_by_one: bool = False,
    ) -> None:
        self._call = task, args, kwargs
        #: Where it is killed.
        self.fault = fault
        #: At which of its places it is handed off; or after each of its iterations.
        self.stop_at, self.is_one_by_one = stop_at, is_one_by_one
        self.store = _CallBook()
        #: What it has written.
        self.journal: list[str] = []
        #: How many places it has passed where it could be handed off.
        self.places = 0
        #: After how many iterations it could have made room for others.
        self.passed_iterations = 0
        #: Where it was handed off.
        self.where: str | None = None
        self.result: Any = None
        self._idle = 0
        self._passing = Lock()

    @property
    def writes(self) -> int:
        """How many writes it has begun."""
        return len(self.journal)

    def write(self, number: int) -> str:
        """A write, as a report names it."""
        return f"write {number} ({self.journal[number - 1]})"

    @property
    def disturbance(self) -> str | None:
        """What has happened to it, if anything has."""
        if self.where is not None:
            return f"handed off {self.where}"
        if self.fault is None or self.fault.at > self.writes:
            return None
        killed = f"killed just {self.fault.when} {self.write(self.fault.at)}"
        # Then the kill cannot be the cause: the agent gives other results each time.
        return f"{killed}, before the body began" if self.fault.at == 1 else killed

    def is_to_stop_here(self) -> bool:
        """Is this the place to be handed off at? Tools that run side by side pass side by side."""
        with self._passing:
            self.places += 1
            return self.places == self.stop_at

    def killed(self) -> Iterator[SimulatedRun]:
        """The same again, killed at each of the writes that this one has made."""
        for at in range(1, self.writes + 1):
            yield SimulatedRun(*self._call, fault=Fault(at, "before", _die))
            yield SimulatedRun(*self._call, fault=Fault(at, "after", _die))

    def handed_off(self) -> Iterator[SimulatedRun]:
        """The same again, handed off at each of the places that this one has passed."""
        for place in range(1, self.places + 1):
            yield SimulatedRun(*self._call, stop_at=place)
        if self.passed_iterations:
            yield SimulatedRun(*self._call, is_one_by_one=True)

    def live(self) -> Any:
        """Make as many attempts as it takes, and return the result."""
        try:
            while not self._is_over:
                self._attempt()
        except BaseException as error:
            if self.disturbance is not None:
                error.add_note(f"crash_everywhere: {self.disturbance}")
            raise
        return self.result

    @property
    def _is_over(self) -> bool:
        run = self.store.run(_AGENT, _RUN)
        return run is not None and run.status.is_final

    def _attempt(self) -> None:
        store, before = _MortalStore(self), self._progress
        try:
            self.result = self._attempted(store)
        except _HandedOff:
            self._idle = self._idle + 1 if self._progress == before else 0
            if self._idle == _MOST_IDLE_ATTEMPTS:
                raise AssertionError(
                    f"the run is handed off again and again at iteration {before[0]} without progress"
                ) from None
        except BaseException:
            if not store.is_dead:  # else it is what the body makes of its death
                raise

    @property
    def _progress(self) -> tuple[int, int]:
        latest = self.store.load_latest(_AGENT)
        return latest.iteration if latest else 0, self.store.recorded.total()

    def _attempted(self, store: Any) -> Any:
        # Copies: each delivery has the arguments as they were sent.
        task, args, kwargs = self._call[0], *copy.deepcopy(self._call[1:])
        context = AppContext(task.app, store=store)
        run = RunRecord(agent_id=_AGENT, run_id=_RUN, created_at=system_clock.now())
        begun = store.start_run(run, context.owner, _TTL, over=self.store.holder(_AGENT))
        attempt = _Attempt(self, store, context, task, begun.run, HeldLease(begun.lease), begun.due_at)
        body: Callable[..., Any] = getattr(task, "_orig_run", task.run)
        return work(attempt, lambda: body(*args, **kwargs))

    def end(self) -> End:
        """What is left of it: its last checkpoint and the outcome."""
        latest, run = self.store.load_latest(_AGENT), self.store.run(_AGENT, _RUN)
        return {
            "conversation": latest and latest.conversation.messages,
            "state": latest and latest.state,
            "metadata": latest and latest.metadata,
            "iteration": latest and latest.iteration,
            "result": run and run.result,
            "status": run and run.status,
        }


def _die() -> NoReturn:
    raise _Killed
