"""crash_everywhere: is an agent's end the same, wherever it is killed?

    def test_my_agent_survives():
        crash_everywhere(research, ("why is the sky blue?",))

The agent runs once undisturbed, then once for every write that it makes to its store, killed just
before that write and just after it, and resumed. Conversation, state, metadata and result must be the
same each time. What the agent calls must answer the same to the same; no broker, no worker and no
server are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from celery_ckpt.clock import system_clock
from celery_ckpt.records import RunRecord
from celery_ckpt.runtime.attempt import Attempt
from celery_ckpt.runtime.context import AppContext
from celery_ckpt.runtime.execution import work
from celery_ckpt.runtime.lease import Hold
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing.faults import Fault, FaultyStore

_AGENT = _RUN = "crash_everywhere"
_TTL = 3600.0


class _Killed(BaseException):
    """Stands for SIGKILL: nothing is written after it."""


class _MortalStore(FaultyStore):
    """A store whose process dies at a chosen write."""

    def __init__(self, store: MemoryCheckpointStore, fault: Fault | None) -> None:
        super().__init__(store, fault)
        self._is_dead = False

    def __getattr__(self, name: str) -> Any:
        if self._is_dead:
            raise _Killed
        return super().__getattr__(name)

    def _happen(self, number: int, when: str) -> None:
        if self._is_dead and when == "before":
            raise _Killed
        try:
            super()._happen(number, when)
        except _Killed:
            self._is_dead = True
            raise


@dataclass(frozen=True)
class CrashReport:
    """What was tried."""

    #: How many writes one undisturbed run makes.
    writes: int
    #: How often it was killed and resumed.
    kills: int
    #: What it returns.
    result: Any


class _Life:
    """One run, from its beginning to its end, over all its attempts."""

    def __init__(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._task, self._args, self._kwargs = task, tuple(args), dict(kwargs)
        self.store = MemoryCheckpointStore()
        self.writes = 0

    def live(self, fault: Fault | None = None) -> Any:
        """Make one attempt. Raises ``_Killed`` if the fault was met."""
        mortal = _MortalStore(self.store, fault)
        try:
            return self._attempted(mortal)
        finally:
            self.writes = mortal.writes

    def _attempted(self, mortal: Any) -> Any:
        context = AppContext(self._task.app, store=mortal)
        run = RunRecord(agent_id=_AGENT, run_id=_RUN, created_at=system_clock.now())
        begun = mortal.start_run(run, context.owner, _TTL, over=self.store.holder(_AGENT))
        attempt = Attempt(context, self._task, begun.run, Hold(begun.lease), begun.moment)
        body: Callable[..., Any] = getattr(self._task, "_orig_run", self._task.run)
        return work(attempt, lambda: body(*self._args, **self._kwargs))

    def end(self) -> dict[str, Any]:
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


def crash_everywhere(
    task: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> CrashReport:
    """Kill an agent at every write, before and after it, and resume it.

    Raises:
        AssertionError: an end was not that of an undisturbed run; it says after which kill.
    """
    task = task._get_current_object() if hasattr(task, "_get_current_object") else task
    undisturbed = _Life(task, args, kwargs or {})
    result = undisturbed.live()
    kills = 0
    for at in range(1, undisturbed.writes + 1):
        for when in ("before", "after"):
            life = _Life(task, args, kwargs or {})
            kills += _killed(life, at, when)
            if life.end()["status"] is None or not life.end()["status"].is_final:
                life.live()
            _compare(undisturbed.end(), life.end(), f"killed just {when} write {at}")
    return CrashReport(undisturbed.writes, kills, result)


def _killed(life: _Life, at: int, when: Literal["before", "after"]) -> int:
    def die() -> None:
        raise _Killed

    try:
        life.live(Fault(at, when, die))
    except _Killed:
        return 1
    return 0


def _compare(expected: dict[str, Any], found: dict[str, Any], how: str) -> None:
    for what, value in expected.items():
        if found[what] != value:
            raise AssertionError(f"{how}, the {what} is {found[what]!r} instead of {value!r}")
