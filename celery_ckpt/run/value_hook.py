"""The hook of a step, ``on_value``: what it changes in the run belongs to the record of the step.

    new call    the function returns ─> on_value changes the run ─> one write: step and checkpoint
    replay      the step is recorded ─> on_value changes the run in the same way

The hook runs before the write, because the checkpoint contains what it has changed; and where the
caller runs, not in a thread for I/O. If the write fails, its changes are undone: the call has not
happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery_ckpt.conversation import Conversation
from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import Step
from celery_ckpt.run.position import Position
from celery_ckpt.run.tool_results import ToolResults

if TYPE_CHECKING:
    from celery_ckpt.run.agent_run import AgentRun


class _Snapshot:
    """The conversation and the state of a run at one moment."""

    def __init__(self, run: AgentRun) -> None:
        self.conversation, self.state = run.conversation, run.state
        self.extent, self.edits = run.conversation.extent, run.conversation.edits
        self.json = _json(run.state)


class ValueHook:
    """The hook of one step, as an ``Addition``: it adds through the run, so the step adds nothing."""

    def __init__(
        self,
        run: AgentRun,
        position: Position,
        on_value: Callable[[Any], object] | None,
        value_of: Callable[[Step], Any],
        outside_errors: tuple[type[Exception], ...],
        lock: threading.RLock,
    ) -> None:
        self._run, self._at, self._on_value, self._value_of = run, position, on_value, value_of
        self._outside_errors = outside_errors
        #: Hooks of parallel calls run one after the other.
        self._lock = lock
        self._before: _Snapshot | None = None
        self._after: _Snapshot | None = None

    def note(self, step: Step) -> None:
        """Note that the step is recorded: a replay changes the run again, and nothing is undone."""
        before, after = self._before, self._after
        if before is not None and after is not None:
            self._at.note_replayed_edits(
                (before.conversation, before.edits),
                before.extent,
                (after.conversation, after.edits),
                after.extent,
            )
        self._before = self._after = None

    def add(self, step: Step, conversation: Conversation, results: ToolResults) -> None:
        """Do nothing."""

    def apply(self, step: Step) -> Exception | None:
        """Call the hook. Return an exception to raise once the step is recorded.

        A replay of the step raises an error of the hook again, at the same place. An exception from
        outside, such as a soft time limit, interrupts no hook: what it has done is done again.
        """
        if self._on_value is None or self._at.is_past:
            return None
        with self._lock:
            self._before, interruption = _Snapshot(self._run), None
            try:
                failure = self._call(step)
            except self._outside_errors as error:
                self._after, interruption = _Snapshot(self._run), error
                self._restore(self._before, self._after)
                failure = self._call(step)
            self._after = _Snapshot(self._run)
        return interruption or failure

    def _call(self, step: Step) -> Exception | None:
        assert self._on_value is not None
        try:
            self._on_value(self._value_of(step))
        except self._outside_errors:
            raise
        except Exception as error:
            return error
        return None

    def undo(self) -> None:
        """Undo what the hook has changed, unless the step is recorded, or something else changed it."""
        with self._lock:
            if self._before is not None and self._after is not None:
                self._restore(self._before, self._after)
            self._before = self._after = None

    def _restore(self, before: _Snapshot, after: _Snapshot) -> None:
        run = self._run
        if after.json is not None and _json(run.state) == after.json:
            run.state = before.state
            if before.json is not None and _json(run.state) != before.json:
                run.state.clear()
                run.state.update(decode(before.json))
        if run.conversation is after.conversation and run.conversation.extent == after.extent:
            before.conversation.restore(before.extent, before.edits)
            run.conversation = before.conversation


def _json(state: dict[str, Any]) -> bytes | None:
    try:
        return encode(state)
    except (TypeError, ValueError):
        return None  # the next checkpoint reports what is not JSON
