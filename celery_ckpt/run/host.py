"""The host of a run: what a run needs from its surroundings, without Celery and without a store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.records import Step
from celery_ckpt.run.timed_call import TimedCall
from celery_ckpt.usage import Usage

if TYPE_CHECKING:
    from celery_ckpt.run.agent_run import AgentRun


#: The checkpoint that was saved, why it was not saved, or ``None`` if the strategy wants none.
Saved: TypeAlias = Checkpoint | Exception | None


class RunHost(Protocol):
    """What a run calls. Each method may raise ``Fenced`` or ``HandOff``.

    Calls of a body may run in parallel, so a host is called from several threads. It handles one event
    or checkpoint of a run at a time: of two snapshots, the older one must not be saved last.
    """

    #: True if the run is recorded somewhere, so that a later attempt can continue it.
    is_kept: bool
    #: Exceptions that the task queue raises in a task: they are never the result of a tool.
    queue_errors: tuple[type[Exception], ...]

    def around(self, call: TimedCall) -> AbstractContextManager[None]:
        """Return the context in which a call is made. Cheap: no I/O."""
        ...

    def replayed(self, call: TimedCall) -> None:
        """Note that a call was replayed. Cheap: no I/O."""
        ...

    def record(self, step: Step, paid: Usage, call: TimedCall | None) -> None:
        """Record a step, and what its call itself has used. Blocking I/O."""
        ...

    def record_event(
        self,
        run: AgentRun,
        event: CheckpointEvent,
        step: Step,
        paid: Usage,
        call: TimedCall,
        snapshot: Callable[[], Checkpoint],
        keep: Callable[[], None],
    ) -> Saved:
        """Record a step whose result is an event, with ``snapshot()`` if the strategy says so.

        The step is recorded whatever becomes of the checkpoint. Once it is, call ``keep``. Return what
        became of the checkpoint, for ``emit_recorded``. Blocking I/O.
        """
        ...

    def emit_recorded(self, run: AgentRun, event: CheckpointEvent, saved: Saved) -> None:
        """Emit the event of a recorded step, and what became of its checkpoint. Blocking I/O."""
        ...

    def emit(self, run: AgentRun, event: CheckpointEvent) -> None:
        """Emit the event, and save ``run.snapshot(event)`` if the strategy says so. Blocking I/O."""
        ...

    def save(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        """Save a checkpoint now. Blocking I/O."""
        ...

    def check(self, run: AgentRun) -> None:
        """Raise if the run must stop now. Cheap: no I/O."""
        ...

    def is_stopping(self, run: AgentRun) -> bool:
        """True if the worker shuts down, or the run must stop. Cheap, and without consequences."""
        ...

    def hand_off(self, run: AgentRun) -> None:
        """Raise ``HandOff``, unless the attempt has done nothing that the next one would not repeat."""
        ...

    def iteration_ended(self, run: AgentRun) -> None:
        """Note that an iteration has ended and was emitted. May hand the run off. Blocking I/O."""
        ...

    def changed(self, run: AgentRun, name: str, *, is_replayed: bool = False) -> None:
        """Report that a call of that name does not match its record. Blocking I/O; may raise.

        The call is made again or, with ``is_replayed``, its record is used all the same.
        """
        ...

    def cost_failed(self, run: AgentRun, error: Exception) -> None:
        """Report that the usage or the cost of a call could not be computed. Must not raise."""
        ...
