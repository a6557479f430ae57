"""Where a soft time limit interrupts: in the body of an agent, and nowhere else.

A prefork pool sends its child a signal, and the handler raises ``SoftTimeLimitExceeded`` wherever the
child is just then. While an attempt begins, records how it ended or hands off, and while Celery stores
the outcome, that exception would make Celery report a failure that the store knows nothing of. So the
handler raises it in the body only. A limit that comes before the body hands the run off, as soon as
that can be recorded; one that comes after the body is too late to matter.

Other pools have no soft time limits, and there is nothing to do in them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_prerun

from celery_ckpt.run.control import HandOff


class SoftTimeLimit:
    """The soft time limit of the task that a child of a prefork pool executes."""

    def __init__(self) -> None:
        #: May it interrupt what is being done now?
        self._interrupts = True
        self._has_passed = False
        self._is_agents = False

    def listen(self) -> None:
        """Take the place of the pool's own handler, if it has one in this process."""
        from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler

        # The pool installs its handler after all signals that a child could hear at its start.
        if SIG_SOFT_TIMEOUT and signal.getsignal(SIG_SOFT_TIMEOUT) is soft_timeout_sighandler:
            signal.signal(SIG_SOFT_TIMEOUT, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        is_repeated, self._has_passed = self._has_passed, True
        # A pool that is told to stop may send it again. By then an agent's body is cleaning up.
        if self._interrupts and not (self._is_agents and is_repeated):
            raise SoftTimeLimitExceeded

    def begin(self, *, of_agent: bool) -> None:
        """A task begins. That of an agent is not interrupted until its body is at work."""
        self._is_agents, self._interrupts, self._has_passed = of_agent, not of_agent, False

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """The body is at work.

        Raises:
            HandOff: the limit has passed before.
        """
        try:
            self._interrupts = True
            if self._has_passed:
                raise HandOff("the soft time limit passed before the body began")
            yield
        finally:
            self._interrupts = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The body does what must not be left half done."""
        before, self._interrupts = self._interrupts, False
        try:
            yield
        finally:
            self._interrupts = before


#: Of this process.
soft_time_limit = SoftTimeLimit()


def _on_prerun(sender: Any, **_: Any) -> None:
    # A task that another one calls eagerly is a part of that.
    if not sender.request.is_eager:
        soft_time_limit.listen()
        soft_time_limit.begin(of_agent=getattr(sender, "is_agent", False))


def connect() -> None:
    """Listen to Celery."""
    task_prerun.connect(_on_prerun, weak=False, dispatch_uid="celery_ckpt.timelimit")
