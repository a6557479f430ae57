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
    ToolCall,
    signals,
)
from celery_ckpt.errors import CheckpointTooLarge, NotJson, StoreError, StoreUnavailable
from celery_ckpt.run.bridge import SyncBridge
from celery_ckpt.run.control_flow import Fenced
from celery_ckpt.run.current import current_run
from celery_ckpt.run.redaction import KEEP_ALL
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
    context: Any = SimpleNamespace(
        store=store, settings=settings, sends_events=False, redaction=KEEP_ALL
    )
    held: Any = SimpleNamespace(lease=start.lease, is_lost=False)
    return Attempt(context, Task(), start.run, held)


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


def call_a_tool(run: AgentRun) -> None:
    run.tool(ToolCall(id="call", name="tool", input={}), lambda: "result")


def test_receivers_get_the_result_of_a_call_when_it_is_recorded_and_saved(
    attempt: Attempt, run: AgentRun
) -> None:
    seen: list[object] = []

    def on_event(sender: Any, run: AgentRun, event: CheckpointEvent, **_: Any) -> None:
        seen.extend((event, len(run.conversation), len(saved(attempt))))
        seen.append([step.value for step in attempt.context.store.steps("agent", "run")])
        run.state["seen"] = len(seen)

    def on_saved(sender: Any, run: AgentRun, checkpoint: Checkpoint, **_: Any) -> None:
        seen.append(checkpoint.state)

    with received(signals.checkpoint_event, on_event), received(signals.checkpoint_saved, on_saved):
        call_a_tool(run)

    assert seen == [TOOL_CALL_COMPLETE, 1, 1, ["result"], {}]
    # What a receiver has changed is part of the next checkpoint.
    assert run.snapshot().state == {"seen": 4}
    assert saved(attempt)[0].conversation == run.conversation


def test_a_result_is_recorded_even_if_its_checkpoint_cannot_be_saved(
    attempt: Attempt, run: AgentRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = attempt.context.store
    failed: list[Exception] = []
    refusal = StoreUnavailable(where="here", reason="a test")

    def unavailable(*_: Any, **__: Any) -> None:
        raise refusal

    monkeypatch.setattr(store, "save", unavailable)
    with received(signals.checkpoint_failed, lambda error, **_: failed.append(error)):
        call_a_tool(run)
    assert failed == [refusal]

    refusal = CheckpointTooLarge(what="It", agent_id="agent", size=2, limit=1, part="all", part_size=2)
    with pytest.raises(CheckpointTooLarge):
        run.tool(ToolCall(id="other", name="tool", input={}), lambda: "another")
    run.state["not JSON"] = object()
    with pytest.raises(NotJson):
        run.tool(ToolCall(id="third", name="tool", input={}), lambda: "a third")

    assert [step.value for step in store.steps("agent", "run")] == ["result", "another", "a third"]
    assert len(run.conversation) == 3


def test_a_result_that_is_not_recorded_is_not_in_the_conversation(
    attempt: Attempt, run: AgentRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = attempt.context.store
    lengths: list[int] = []

    def refuse(*_: Any, **__: Any) -> None:
        lengths.append(len(run.conversation))
        raise StoreError(reason="a test")

    with monkeypatch.context() as patched:
        patched.setattr(store, "record_step", refuse)
        with pytest.raises(StoreError):
            call_a_tool(run)
    assert lengths[0] == len(run.conversation) == 0
    call_a_tool(run)
    assert len(run.conversation) == len(saved(attempt)[0].conversation) == 1


def test_a_lost_lease_records_nothing_and_ends_the_attempt(attempt: Attempt, run: AgentRun) -> None:
    store = attempt.context.store
    attempt.held.lose = lambda: None  # type: ignore[method-assign]
    store.release(attempt.held.lease)
    with pytest.raises(Fenced):
        call_a_tool(run)
    assert store.steps("agent", "run") == saved(attempt) == []


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
