"""What an attempt adds to the event log: entries that travel with its writes, and its current call.

A call that was made is noted by the write of its step. A call that failed, or was replayed, has no
write of its own: its entry waits here for the next one, and is lost if the process is killed before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import CheckpointError
from celery_ckpt.event_log import LONGEST_TEXT, LogEntry, usage_data
from celery_ckpt.records import CurrentCall, RunRecord
from celery_ckpt.run.control_flow import found
from celery_ckpt.run.redaction import Redaction
from celery_ckpt.run.timed_call import TimedCall
from celery_ckpt.store import CheckpointStore
from celery_ckpt.usage import Usage


def keeps_log(store: CheckpointStore) -> bool:
    """Return True if the store keeps event logs, and they are not switched off."""
    return "log" in store.features and store.event_log_limit > 0


class AttemptLog:
    """The entries and the current call of one attempt. Calls may be made in several threads."""

    def __init__(self, store: CheckpointStore, run: RunRecord, redaction: Redaction) -> None:
        self._store, self._redaction = store, redaction
        self._identity = {"run_id": run.run_id, "attempt": run.attempts}
        self._agent_id = run.agent_id
        #: False if nothing is noted.
        self.is_on = keeps_log(store)
        #: Entries that wait for the next write.
        self._waiting: deque[LogEntry] = deque(maxlen=store.event_log_limit if self.is_on else 0)
        #: The calls that are being made, in the order in which they began.
        self._calls: dict[int, TimedCall] = {}
        self._lock = threading.Lock()

    # -- calls ---------------------------------------------------------------------------------------

    @contextmanager
    def around(self, call: TimedCall) -> Iterator[None]:
        """Know that the call is being made in the block. If the block fails, note that it failed."""
        with self._lock:
            self._calls[id(call)] = call
        try:
            yield
        except BaseException as error:
            call.end()
            if found(error) is None:  # otherwise the run stops, which is no error of the call
                self._wait(self._of_call("call", call, error=self._text(error)))
            raise
        finally:
            call.end()
            with self._lock:
                del self._calls[id(call)]

    def replayed(self, call: TimedCall) -> None:
        """Note that a call was replayed."""
        self._wait(self._of_call("replay", call))

    def current_call(self) -> CurrentCall | None:
        """Return the call that began last of those that are being made."""
        with self._lock:
            call = next(reversed(self._calls.values()), None)
        if call is None:
            return None
        return CurrentCall(kind=call.kind, name=call.name, began_at=call.began_at)

    def _of_call(self, kind: str, call: TimedCall, **more: Any) -> LogEntry:
        data = {**self._identity, "iteration": call.iteration, "call": call.kind, "name": call.name}
        if kind == "call":
            data["took"] = call.took
        return LogEntry(kind, call.began_at, data | more)

    def _wait(self, entry: LogEntry) -> None:
        if self.is_on:
            with self._lock:
                self._waiting.append(entry)

    def _text(self, error: BaseException) -> str:
        if isinstance(error, Exception):
            return self._redaction.error(error)[:LONGEST_TEXT]
        return type(error).__name__

    # -- entries for a write -------------------------------------------------------------------------

    def made(self, call: TimedCall | None, paid: Usage) -> list[LogEntry]:
        """Return the entry of a call whose step is recorded."""
        if call is None or not self.is_on:
            return []
        return [self._of_call("call", call, **({"usage": usage_data(paid)} if paid else {}))]

    def ended(self, how: str, why: str | BaseException | None = None) -> list[LogEntry]:
        """Return the entry of the end of the attempt."""
        if not self.is_on:
            return []
        data = {**self._identity, "how": how}
        if isinstance(why, BaseException):
            data["why"] = self._text(why)
        elif why:
            data["why"] = why[:LONGEST_TEXT]
        return [LogEntry("ended", system_clock.now(), data)]

    @contextmanager
    def with_next(self, entries: list[LogEntry]) -> Iterator[dict[str, Any]]:
        """Return the parameter of a write that takes these entries, and those that wait.

        If the write fails, those wait again.
        """
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        try:
            yield {"log": [*taken, *entries]} if taken or entries else {}
        except BaseException:
            with self._lock:
                self._waiting.extendleft(reversed(taken))
            raise

    def fenced(self) -> None:
        """Note that the attempt has lost its lease, unless another attempt has noted its loss."""
        if self.is_on:
            with suppress(CheckpointError):
                self._store.note(self._agent_id, self.ended("fenced"))
