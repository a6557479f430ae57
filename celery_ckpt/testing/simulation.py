"""One run from its first attempt to its end, in one process, interrupted at a chosen place.

The store is in memory. A kill is simulated: from the chosen write on, the attempt writes nothing more.
A hand-off is simulated by what a worker does when it shuts down, except that no message is published.
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
from celery_ckpt.runtime.settings import Settings
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.strategies import Never
from celery_ckpt.testing.faults import Fault, FaultyStore

_AGENT = _RUN = "crash_everywhere"
_TTL = 3600.0
#: A run that is handed off this often in a row without progress never ends.
_MOST_IDLE_ATTEMPTS = 3

#: What is left of a run when it has ended: ``conversation`` (its messages), ``state``, ``metadata`` and
#: ``iteration`` of its last checkpoint; ``result`` and ``status`` of its record.
End = dict[str, Any]


class _Killed(BaseException):
    """Simulates SIGKILL: nothing is written after it."""


class _HandedOff(BaseException):
    """The run is back in its queue, and this attempt has ended."""


class _CallBook(MemoryCheckpointStore):
    """A store that remembers which calls were recorded, even after it has dropped their steps."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded: list[tuple[int, str]] = []

    def record_step(self, step: Step, lease: Lease | None = None, **options: Any) -> None:
        super().record_step(step, lease, **options)
        self._recorded.append((step.iteration, step.name))

    @property
    def recorded(self) -> Counter[tuple[int, str]]:
        """How often a call was recorded, by iteration and name."""
        return Counter(self._recorded)


class _MortalStore(FaultyStore):
    """The store of a simulated process, which dies at a chosen write."""

    def __init__(self, simulated: SimulatedRun) -> None:
        super().__init__(simulated.store, simulated.fault)
        #: Writes are counted over all attempts.
        self.journal = simulated.journal
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
    """An attempt that counts where it can be handed off, and is handed off where its run says so."""

    def __init__(self, simulated: SimulatedRun, store: _MortalStore, *args: Any) -> None:
        super().__init__(*args)
        self._simulated, self._store = simulated, store
        self._has_ended_iteration = self._is_draining = False

    def emit(self, run: AgentRun, event: CheckpointEvent) -> None:
        super().emit(run, event)
        self._has_ended_iteration = event is CheckpointEvent.ITERATION

    def check(self, run: AgentRun) -> None:
        """Hand off at the chosen place, like a worker that shuts down."""
        super().check(run)
        if not self.context.settings.hand_off:
            return
        is_end, self._has_ended_iteration = self._has_ended_iteration, False
        if self._is_draining or self._simulated.stops_here():
            self._simulated.where = self._simulated.where or self._place(run, is_end)
            raise self._stopped("crash_everywhere")
        if self.stop is not None:
            raise self.stop

    def is_stopping(self, run: AgentRun) -> bool:
        """True from the chosen place on: a body that asks may stop by itself."""
        if self.context.settings.hand_off and self._simulated.stops_here():
            self._simulated.where = self._place(run, is_end=False)
            self._is_draining = True
        return self._is_draining or super().is_stopping(run)

    def _place(self, run: AgentRun, is_end: bool) -> str:
        if is_end:
            return f"after iteration {run.iteration}"
        where = f"in iteration {run.iteration}" if run.iteration else "before the first iteration"
        return f"{where}, after {self._simulated.write(self._store.writes)}"

    def iteration_ended(self, run: AgentRun) -> None:
        """Hand off after each iteration, as with ``iterations_per_task=1``, if the run says so."""
        super().iteration_ended(run)
        if isinstance(self.strategy, Never):
            return
        self._simulated.passed_iterations += 1
        if self._simulated.is_one_by_one:
            self._simulated.where = "after every iteration"
            raise self._stopped("crash_everywhere")

    def release(self, record: RunRecord, due_in: float, *how: Any, **options: Any) -> None:
        """Release the lease. No message is published: the simulated run makes the next attempt."""
        if not self._store.is_dead:
            super().release(record, due_in, *how, **options)
            raise _HandedOff


class SimulatedRun:
    """One run over all its attempts."""

    def __init__(
        self,
        task: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        fault: Fault | None = None,
        stop_at: int | None = None,
        is_one_by_one: bool = False,
        settings: Settings | None = None,
    ) -> None:
        self._call = task, args, kwargs
        # To read them takes a quarter of the time of a short attempt, and they do not change.
        self._settings = settings or Settings.of(task.app)
        #: Where the run is killed.
        self.fault = fault
        #: At which place the run is handed off; or whether it is after each iteration.
        self.stop_at, self.is_one_by_one = stop_at, is_one_by_one
        self.store = _CallBook()
        #: A description of each write so far.
        self.journal: list[str] = []
        #: How many places it has passed at which it could be handed off.
        self.places = 0
        #: After how many iterations it could have been handed off to let other runs start.
        self.passed_iterations = 0
        #: Where the run was handed off.
        self.where: str | None = None
        self.result: Any = None
        self._idle = 0
        self._passing = Lock()

    @property
    def writes(self) -> int:
        """The number of writes that have begun."""
        return len(self.journal)

    def write(self, number: int) -> str:
        """Return the name of a write in reports."""
        return f"write {number} ({self.journal[number - 1]})"

    @property
    def interruption(self) -> str | None:
        """The kill or hand-off that has happened to the run, if any."""
        if self.where is not None:
            return f"handed off {self.where}"
        if self.fault is None or self.fault.at > self.writes:
            return None
        killed = f"killed just {self.fault.when} {self.write(self.fault.at)}"
        # Such a kill cannot be the cause of a difference: the agent returns something else each time.
        return f"{killed}, before the body began" if self.fault.at == 1 else killed

    def stops_here(self) -> bool:
        """True if this is the place to hand off at. Parallel tools pass places concurrently."""
        with self._passing:
            self.places += 1
            return self.places == self.stop_at

    def killed(self) -> Iterator[SimulatedRun]:
        """Yield the same run again, killed at each write that this one has made."""
        for at in range(1, self.writes + 1):
            yield self._again(fault=Fault(at, "before", _die))
            yield self._again(fault=Fault(at, "after", _die))

    def handed_off(self) -> Iterator[SimulatedRun]:
        """Yield the same run again, handed off at each place that this one has passed."""
        for place in range(1, self.places + 1):
            yield self._again(stop_at=place)
        if self.passed_iterations:
            yield self._again(is_one_by_one=True)

    def _again(self, **interruption: Any) -> SimulatedRun:
        return SimulatedRun(*self._call, settings=self._settings, **interruption)

    def finish(self) -> Any:
        """Make attempts until the run has ended, and return the result."""
        try:
            while (run := self.store.run(_AGENT, _RUN)) is None or not run.status.is_final:
                self._attempt()
        except BaseException as error:
            if self.interruption is not None:
                error.add_note(f"crash_everywhere: {self.interruption}")
            raise
        return self.result

    def _attempt(self) -> None:
        store: Any = _MortalStore(self)
        before = self._progress
        # Each delivery has its own copy of the arguments.
        task, args, kwargs = self._call[0], *copy.deepcopy(self._call[1:])
        body: Callable[..., Any] = getattr(task, "_orig_run", task.run)
        try:
            context = AppContext(task.app, store, self._settings)
            run = RunRecord(agent_id=_AGENT, run_id=_RUN, created_at=system_clock.now())
            begun = store.start_run(run, context.owner, _TTL, over=self.store.holder(_AGENT))
            held = HeldLease(begun.lease)
            attempt = _Attempt(self, store, context, task, begun.run, held)
            self.result = work(attempt, lambda: body(*args, **kwargs))
        except _HandedOff:
            self._idle = self._idle + 1 if self._progress == before else 0
            if self._idle == _MOST_IDLE_ATTEMPTS:
                raise AssertionError(
                    f"the run is handed off again and again at iteration {before[0]} without progress"
                ) from None
        except BaseException:
            if not store.is_dead:  # else the body has turned the kill into an error of its own
                raise

    @property
    def _progress(self) -> tuple[Any, ...]:
        latest, calls = self.store.load_latest(_AGENT), self.store.recorded.total()
        if latest is None:
            return 0, calls
        # From an entry, the next attempt begins where this one did, whatever the state has become.
        exact = (latest.state, len(latest.conversation)) if latest.entry is None else None
        return latest.iteration, calls, exact

    def end(self) -> End:
        """Return what is left of the run: its last checkpoint and its outcome."""
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
