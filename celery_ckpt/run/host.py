"""What a run needs from the world around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.records import Step
from celery_ckpt.usage import Usage

if TYPE_CHECKING:
    from celery_ckpt.run.agent_run import AgentRun


class RunHost(Protocol):
    """What a run needs from the world. Each may raise ``Fenced`` or ``HandOff``.

    Calls of a body may run in parallel, so a host is called from several threads. It handles one event
    or checkpoint of a run at a time: of two snapshots, the older one must not be saved last.
    """

    #: How the task queue speaks to a task: these are never the result of a tool.
    queue_errors: tuple[type[Exception], ...]

    def record(self, step: Step, paid: Usage) -> None:
        """Keep a step, and what its call itself was paid for. Blocking I/O."""
        ...

    def emit(self, run: AgentRun, event: CheckpointEvent) -> None:
        """Emit the event, and save ``run.snapshot(event)`` if the strategy says so. Blocking I/O."""
        ...

    def save(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        """Save this now. Blocking I/O."""
        ...

    def check(self, run: AgentRun) -> None:
        """Raise if the run must stop now. Cheap: no I/O."""
        ...

    def iteration_ended(self, run: AgentRun) -> None:
        """An iteration is over and its event was told; the run may be handed off here. Blocking."""
        ...

    def changed(self, run: AgentRun, name: str) -> None:
        """A step of that name no longer matches what was recorded. Blocking; may raise."""
        ...

    def cost_failed(self, run: AgentRun, error: Exception) -> None:
        """The cost of a call could not be computed. Must not raise: the call is paid for."""
        ...
