"""The soft time limit of an agent task: it interrupts the body, and nothing else.

A prefork pool sends its child a signal, and the handler raises ``SoftTimeLimitExceeded`` wherever the
child is at that time. While an attempt begins, records its outcome or hands off, and while Celery
stores the outcome, that exception would make Celery report a failure that the store does not have. So
our handler raises it in the body only. A limit that passes before the body hands the run off, as soon
as that can be recorded. A limit that passes after the body has no effect.

Other pools do not have soft time limits.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_prerun

from celery_ckpt.run.control_flow import HandOff


class SoftTimeLimit:
    """The soft time limit of the task that a child of a prefork pool executes."""

    def __init__(self) -> None:
        #: True while the exception may be raised.
        self._interrupts = True
        self._has_passed = False
        self._is_agents = False

    def listen(self) -> None:
        """Replace the pool's own signal handler, if it has one in this process."""
        from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler

        # Not at the start of the child: the pool installs its handler after all of Celery's signals.
        if SIG_SOFT_TIMEOUT and signal.getsignal(SIG_SOFT_TIMEOUT) is soft_timeout_sighandler:
            signal.signal(SIG_SOFT_TIMEOUT, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        is_repeated, self._has_passed = self._has_passed, True
        # A pool that stops may send the signal again. By then the body of an agent is cleaning up.
        if self._interrupts and not (self._is_agents and is_repeated):
            raise SoftTimeLimitExceeded

    def begin(self, *, of_agent: bool) -> None:
        """Begin a task. An agent task is not interrupted until its body is executed."""
        self._is_agents, self._interrupts, self._has_passed = of_agent, not of_agent, False

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Let the limit interrupt the ``with`` block: it executes the body.

        Raises:
            HandOff: the limit passed before the body.
        """
        try:
            self._interrupts = True
            if self._has_passed:
                raise HandOff("the soft time limit passed before the body began")
            yield
        finally:
            self._interrupts = False

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Keep the limit from interrupting the ``with`` block, which must not be left half done."""
        before, self._interrupts = self._interrupts, False
        try:
            yield
        finally:
            self._interrupts = before


#: The soft time limit of this process.
soft_time_limit = SoftTimeLimit()


def _on_prerun(sender: Any, **_: Any) -> None:
    # A task that another one calls eagerly is part of that one.
    if not sender.request.is_eager:
        soft_time_limit.listen()
        soft_time_limit.begin(of_agent=getattr(sender, "is_agent", False))


def connect() -> None:
    """Connect to Celery's signals."""
    task_prerun.connect(_on_prerun, weak=False, dispatch_uid="celery_ckpt.timelimit")
