"""A call of a body, as the event log shows it: what it is, when it began, and how long it took."""

from __future__ import annotations

import time
from datetime import datetime

from celery_ckpt.clock import system_clock
from celery_ckpt.event_log import LONGEST_NAME
from celery_ckpt.records import CallKind


class TimedCall:
    """A call that is made, or replayed, now."""

    __slots__ = ("_began", "began_at", "iteration", "kind", "name", "took")

    def __init__(self, kind: CallKind, name: str, iteration: int) -> None:
        self.kind, self.iteration = kind, iteration
        #: The name of its step, without the prefix of model calls.
        self.name = name.removeprefix("llm:") if kind == "llm" else name
        self.name = self.name[:LONGEST_NAME].encode(errors="replace").decode()
        self.began_at: datetime = system_clock.now()
        self._began = time.monotonic()
        #: How many milliseconds it took; ``None`` until it has ended.
        self.took: int | None = None

    def end(self) -> None:
        """Note that the call has ended."""
        self.took = round((time.monotonic() - self._began) * 1000)
