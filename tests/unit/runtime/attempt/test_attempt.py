"""What an attempt does for its run: it emits signals, and saves when the strategy says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ckpt import (
    AfterToolCall,
    AgentRun,
    Checkpoint,
    CheckpointEvent,
    MemoryCheckpointStore,
    signals,
)
from celery_ckpt.run.bridge import SyncBridge
from celery_ckpt.run.current import current_run
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.testing import make_run

TOOL_CALL_COMPLETE = CheckpointEvent.TOOL_CALL_COMPLETE


class Task:
    """The part of a task that an attempt uses."""

    request = SimpleNamespace()

    def strategy_in(self, settings: Any) -> AfterToolCall:
        return AfterToolCall()


@pytest.fixture
def attempt() -> Attempt:
    store, settings = MemoryCheckpointStore(), SimpleNamespace(hand_off=True, lease_ttl=30)
    start = store.start_run(make_run("agent", "run"), "me", 30)
    context: Any = SimpleNamespace(store=store, settings=settings, sends_events=False)
    held: Any = SimpleNamespace(lease=start.lease, is_lost=False)
    return Attempt(context, Task(), start.run, held, start.due_at)


@pytest.fixture
def run(attempt: Attempt) -> AgentRun:
    return AgentRun("agent", "run", 1, attempt, SyncBridge(), None, [], task=attempt.task)


@contextmanager
def received(signal: Any, receiver: Callable[..., None]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def saved(attempt: Attempt) -> list[Any]:
    return attempt.context.store.list("agent")


def test_receivers_get_the_event_before_the_checkpoint_is_saved(
    attempt: Attempt, run: AgentRun
) -> None:
    seen: list[object] = []

    def on_event(sender: Any, run: AgentRun, event: CheckpointEvent, **_: Any) -> None:
        seen.extend((event, len(saved(attempt))))
        run.state["seen"] = True

    def on_saved(sender: Any, run: AgentRun, checkpoint: Checkpoint, **_: Any) -> None:
        seen.extend((checkpoint.state, len(saved(attempt))))

    with received(signals.checkpoint_event, on_event), received(signals.checkpoint_saved, on_saved):
        run.emit(TOOL_CALL_COMPLETE)

    assert seen == [TOOL_CALL_COMPLETE, 0, {"seen": True}, 1]


def test_an_exception_in_a_receiver_does_not_prevent_a_checkpoint(
    attempt: Attempt, run: AgentRun
) -> None:
    def broken(**_: Any) -> None:
        raise ValueError("broken")

    with received(signals.checkpoint_event, broken), received(signals.checkpoint_saved, broken):
        run.emit(TOOL_CALL_COMPLETE)

    assert len(saved(attempt)) == 1


def test_an_event_that_the_strategy_does_not_select_saves_nothing(
    attempt: Attempt, run: AgentRun
) -> None:
    run.emit(CheckpointEvent.LLM_RESPONSE)
    assert saved(attempt) == []


def test_receivers_have_the_current_run_in_threads_of_the_body(run: AgentRun) -> None:
    runs: list[AgentRun] = []

    with (
        received(signals.checkpoint_event, lambda **_: runs.append(current_run())),
        received(signals.checkpoint_saved, lambda **_: runs.append(current_run())),
        ThreadPoolExecutor(1) as threads,
    ):
        threads.submit(run.emit, TOOL_CALL_COMPLETE).result()

    assert runs == [run, run]


def test_events_of_parallel_calls_are_emitted_one_at_a_time(run: AgentRun) -> None:
    both_at_once = threading.Barrier(2)
    met: list[bool] = []

    def meet(**_: Any) -> None:
        try:
            both_at_once.wait(0.1)
            met.append(True)
        except threading.BrokenBarrierError:
            both_at_once.reset()

    with received(signals.checkpoint_event, meet), ThreadPoolExecutor(2) as threads:
        list(threads.map(run.emit, [TOOL_CALL_COMPLETE] * 2))

    assert met == []
