"""Stores that fail, or kill their process, at a chosen write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, NoReturn

from celery_ckpt.errors import StoreUnavailable
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
        "release",
        "record_step",
        "drop_steps",
        "add_run",
        "update_run",
        "start_run",
        "settle_run",
        "cancel_run",
        "watch",
        "unwatch",
        "due",
        "set_notes",
        "pin",
        "carry_out",
    }
)


class InjectedFault(StoreUnavailable):
    """The failure that a test asked for."""


def kill_this_process() -> NoReturn:
    """End this process as an out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable: the process is dead")


def _fail() -> NoReturn:
    raise InjectedFault(where="a faulty store", reason="a fault was injected")


@dataclass
class Fault:
    """What happens at the ``at``-th write, counted from 1: before it is done, or after."""

    at: int
    when: Literal["before", "after"] = "before"
    action: Callable[[], object] = _fail


class FaultyStore:
    """Stands before a store and lets a fault happen; everything else goes through.

    It counts the writes, so that a first run without fault tells how many there are to fail at:

        for n in range(1, writes + 1):
            run_agent(FaultyStore(store, Fault(at=n, when="after", action=kill_this_process)))
    """

    def __init__(self, store: CheckpointStore, fault: Fault | None = None) -> None:
        self._store, self._fault = store, fault
        self.writes = 0
        self._counting = Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return self._written(method) if name in WRITES else method

    def _written(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **kwargs: Any) -> Any:
            number = self._next()
            self._happen(number, "before")
            result = method(*args, **kwargs)
            self._happen(number, "after")
            return result

        return write

    def _next(self) -> int:
        """Each write has a number of its own, also where an agent's tools write side by side."""
        with self._counting:
            self.writes += 1
            return self.writes

    def _happen(self, number: int, when: str) -> None:
        if self._fault and self._fault.at == number and self._fault.when == when:
            self._fault.action()
