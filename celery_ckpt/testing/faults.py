"""A store that fails, or kills its process, at a chosen write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, NoReturn, cast

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.records import RunRecord, Step
from celery_ckpt.run.steps import MANUAL
from celery_ckpt.store import CheckpointStore

#: The methods of a store that write.
WRITES = frozenset(
    {
        "save",
        "remove",
        "prune",
        "delete",
        "acquire",
        "renew",
        "renew_many",
        "release",
        "record_step",
        "drop_steps",
        "add_run",
        "update_run",
        "start_run",
        "settle_run",
        "pass_turn",
        "cancel_run",
        "schedule",
        "unschedule",
        "reschedule",
        "claim_due",
        "set_policy",
        "pin",
        "apply",
        "note",
        "follow",
        "stream",
    }
)


class InjectedFault(StoreUnavailable):
    """The failure that a test asked for."""


def kill_this_process() -> NoReturn:
    """Kill this process, like an out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable: the process is dead")


def _fail() -> NoReturn:
    raise InjectedFault(where="a faulty store", reason="a fault was injected")


@dataclass
class Fault:
    """What happens before or after the ``at``-th write, counted from 1."""

    at: int
    when: Literal["before", "after"] = "before"
    action: Callable[[], object] = _fail


class FaultyStore:
    """Passes all calls to a store, and lets one fault happen.

    It counts the writes, so that a first run without a fault shows how many there are to fail at:

        for n in range(1, writes + 1):
            run_agent(FaultyStore(store, Fault(at=n, when="after", action=kill_this_process)))
    """

    def __init__(self, store: CheckpointStore, fault: Fault | None = None) -> None:
        self._store, self._fault = store, fault
        #: A description of each write, in order: "record of llm:ask, iteration 1".
        self.journal: list[str] = []
        self._counting = Lock()

    @property
    def writes(self) -> int:
        """The number of writes that have begun."""
        return len(self.journal)

    def record_and_save(self, *args: Any, **kwargs: Any) -> Any:
        """Record and save by two writes, so that a fault can happen between them."""
        return CheckpointStore.record_and_save(cast(CheckpointStore, self), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in WRITES:
            return method

        def write(*args: Any, **kwargs: Any) -> Any:
            number = self._begin(described(name, args, kwargs))
            self._happen(number, "before")
            result = method(*args, **kwargs)
            self._happen(number, "after")
            return result

        return write

    def _begin(self, what: str) -> int:
        """Return the number of a new write. Parallel tools write concurrently."""
        with self._counting:
            self.journal.append(what)
            return len(self.journal)

    def _happen(self, number: int, when: str) -> None:
        if self._fault and self._fault.at == number and self._fault.when == when:
            self._fault.action()


def described(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return a description of a write, for reports."""
    run = kwargs.get("run")
    match name, args:
        case ("record_step", (Step(key=key), *_)) if key == MANUAL:
            return "record that the body counts its iterations"
        case "record_step", (Step() as step, *_):
            return f"record of {step.name}, {iteration_name(step.iteration)}"
        case "save", (Checkpoint() as checkpoint, *_):
            what = "checkpoint" if run is None else f"last checkpoint, run {run.status}"
            return f"{what}, {iteration_name(checkpoint.iteration)}"
        case "start_run", _:
            return "start of an attempt"
        case "update_run", (RunRecord(status=status), *_):
            return f"run {status}"
        case "release", _:
            return "release of the lease" if run is None else f"release of the lease, run {run.status}"
        case "drop_steps", _:
            return "removal of steps that no attempt needs"
    return name


def iteration_name(number: int) -> str:
    """Return the name of an iteration in reports. Iteration 0 is the code before the loop."""
    return f"iteration {number}" if number else "before the first iteration"
