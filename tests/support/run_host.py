"""A host with a store in memory, attempts that can be killed at any write, and models."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery_ckpt import (
    AgentRun,
    Checkpoint,
    CheckpointEvent,
    CheckpointStrategy,
    Conversation,
    MemoryCheckpointStore,
    Never,
)
from celery_ckpt.records import Step
from celery_ckpt.run.bridge import AsyncBridge, SyncBridge
from celery_ckpt.run.control_flow import HandOff, found
from celery_ckpt.run.timed_call import TimedCall
from celery_ckpt.usage import Usage


class Killed(BaseException):
    """Raised where the process is killed."""


class OutOfTime(Exception):
    """Represents an error that the task queue raises in a task."""


class Host:
    """Does what the runtime does: records steps, saves when the strategy says so, drops old steps."""

    is_kept = True
    queue_errors = (OutOfTime,)

    def __init__(
        self, store: MemoryCheckpointStore, strategy: CheckpointStrategy, kill_at: int | None = None
    ) -> None:
        self.store, self.strategy = store, strategy
        self.events: list[tuple[int, CheckpointEvent]] = []
        self.changes: list[str] = []
        self.costs_failed: list[Exception] = []
        self.replays: list[tuple[str, str]] = []
        self.checks = 0
        self.stop_at_check: int | None = None
        self.stop_after_iteration: int | None = None
        self._left = kill_at
        self._lock = threading.RLock()
        self.writes = 0

    def _gate(self) -> None:
        """Raise ``Killed`` if the process dies here: each write has a point before it and one after."""
        if self._left is not None:
            if self._left <= 0:
                raise Killed
            self._left -= 1

    def _write(self, write: Callable[[], Any]) -> None:
        self._gate()
        write()
        self.writes += 1
        self._gate()

    def around(self, call: TimedCall) -> AbstractContextManager[None]:
        return nullcontext()

    def replayed(self, call: TimedCall) -> None:
        self.replays.append((call.kind, call.name))

    def record(self, step: Step, paid: Usage, call: TimedCall | None) -> None:
        self._write(lambda: self.store.record_step(step, paid=paid or None))

    def record_event(
        self,
        run: AgentRun,
        event: CheckpointEvent,
        step: Step,
        paid: Usage,
        call: TimedCall,
        snapshot: Callable[[], Checkpoint],
        keep: Callable[[], None],
    ) -> Checkpoint | None:
        with self._lock:
            if not self.strategy.should_checkpoint(run.iteration, event):
                self.record(step, paid, call)
                keep()
                return None
            checkpoint = snapshot()
            # Killed between the two halves, too.
            self.record(step, paid, call)
            self._write(lambda: self.store.save(checkpoint))
            keep()
            return checkpoint

    def emit_recorded(self, run: AgentRun, event: CheckpointEvent, saved: Any) -> None:
        with self._lock:
            self.events.append((run.iteration, event))
            if saved is not None:
                self._drop(run, saved)

    def emit(self, run: AgentRun, event: CheckpointEvent) -> None:
        with self._lock:
            self.events.append((run.iteration, event))
            if self.strategy.should_checkpoint(run.iteration, event):
                self.save(run, run.snapshot(event))

    def save(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        with self._lock:
            self._save(run, checkpoint)

    def _save(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        self._write(lambda: self.store.save(checkpoint))
        self._drop(run, checkpoint)

    def _drop(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        if last := run.resumes_beyond(checkpoint):
            self._write(lambda: self.store.drop_steps(run.agent_id, run.run_id, first=1, last=last))

    def check(self, run: AgentRun) -> None:
        self.checks += 1
        # A shutdown continues even if the body catches the exception.
        if self.stop_at_check is not None and self.checks >= self.stop_at_check:
            raise HandOff

    def is_stopping(self, run: AgentRun) -> bool:
        return self.stop_at_check is not None and self.checks + 1 >= self.stop_at_check

    def hand_off(self, run: AgentRun) -> None:
        raise HandOff

    def iteration_ended(self, run: AgentRun) -> None:
        if run.iteration == self.stop_after_iteration:
            raise HandOff

    def changed(self, run: AgentRun, name: str, *, is_replayed: bool = False) -> None:
        self.changes.append(name)

    def cost_failed(self, run: AgentRun, error: Exception) -> None:
        self.costs_failed.append(error)


class Attempts:
    """One run of one agent, with any number of attempts."""

    def __init__(
        self,
        body: Callable[..., Any],
        strategy: CheckpointStrategy | None = None,
        *,
        store: MemoryCheckpointStore | None = None,
        run_id: str = "run",
    ) -> None:
        self.body, self.run_id = body, run_id
        self.strategy = strategy or Never()
        self.store = store or MemoryCheckpointStore()
        self.number = 0

    def attempt(self, kill_at: int | None = None) -> AgentRun:
        """Return the run at the start of a new attempt; ``self.host`` is its host."""
        self.number += 1
        self.host = Host(self.store, self.strategy, kill_at)
        bridge = AsyncBridge() if inspect.iscoroutinefunction(self.body) else SyncBridge()
        latest = self.store.load_latest("a")
        steps = self.store.steps("a", self.run_id)
        return AgentRun("a", self.run_id, self.number, self.host, bridge, latest, steps)

    def go(self, run: AgentRun | None = None) -> tuple[Any, AgentRun]:
        """Execute the body to its end, and save the last checkpoint as the runtime does."""
        run = run or self.attempt()
        try:
            result = self.body(run)
            if inspect.iscoroutine(result):
                result = asyncio.run(_begun(run, result))
        except BaseException as error:
            if isinstance(found(error), HandOff):
                self.host.save(run, run.snapshot())
            raise
        run.flush_tool_results()
        if self.strategy != Never():
            self.host.save(run, run.snapshot())
        return result, run

    def killed(self, kill_at: int) -> bool:
        """Make an attempt that is killed at that point; return False if it ended before it."""
        try:
            self.go(self.attempt(kill_at))
        except BaseException as error:
            if not was_killed(error):
                raise
            return True
        return False

    @property
    def latest(self) -> Checkpoint:
        latest = self.store.load_latest("a")
        assert latest is not None
        return latest


async def _begun(run: AgentRun, body: Coroutine[Any, Any, Any]) -> Any:
    run.begin_body()
    return await body


def was_killed(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(was_killed(inner) for inner in error.exceptions)
    return isinstance(error, Killed)


def chat_reply(text: str | None, *calls: tuple[str, str, str]) -> dict[str, Any]:
    """Return a reply in the shape of OpenAI; a call is (id, name, arguments as JSON)."""
    asked = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, name, arguments in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": asked} if asked else {})}


def roles(conversation: Conversation) -> list[Any]:
    return [message.role or message.json_object.get("type") for message in conversation]
