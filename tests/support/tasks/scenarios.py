"""Agents for the scenarios, and receivers that note the signals of the library in the ledger.

A call is in the ledger when it is made, and as "recorded" when the library has emitted its event.
From then on it must not be repeated.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import shared_task

from celery_ckpt import AgentRun, CheckpointEvent, Conversation, EveryN, Message, agent_task, signals
from celery_ckpt.runtime.current import current_attempt
from tests.support.ledger import here, is_worker
from tests.support.tasks.agents import model

MODULE = "tests.support.tasks.scenarios"
_CALLS = {CheckpointEvent.LLM_RESPONSE: "llm", CheckpointEvent.TOOL_CALL_COMPLETE: "tool"}


def _count(run: AgentRun, n: int, seconds: float = 0.1) -> list[Any]:
    with here().body(run.run_id, attempt=run.attempt, token=_token()):
        if not run.resumed:
            run.conversation.append(Message.user(f"count to {n}"))

        def add(x: int) -> int:
            here().call(run.run_id, f"tool {x}")
            time.sleep(seconds)
            return x + 1

        for _ in run.iterations(limit=n):
            reply = run.llm(model, run, run.conversation, seconds)
            for call in reply.tool_calls:
                run.state["sum"] = run.state.get("sum", 0) + run.tool(call, add)
        return [run.state["sum"], len(run.conversation), run.conversation.digest]


def _token() -> int:
    attempt = current_attempt()
    return attempt.held.lease.token if attempt else 0


#: Makes ``n`` iterations, each with a call of the model and of a tool. The result depends on all.
count = agent_task(name="count", strategy=EveryN(1), max_retries=3)(_count)
#: Its message is acknowledged before the body begins, so the broker does not redeliver it.
early = agent_task(name="early", strategy=EveryN(1), max_retries=3, acks_late=False)(_count)
#: Returns to the queue after each iteration.
fair = agent_task(name="fair", strategy=EveryN(1), max_retries=3, iterations_per_task=1)(_count)


@agent_task(name="async_count", strategy=EveryN(1), max_retries=3)
async def async_count(run: AgentRun, n: int, gate: str) -> list[Any]:
    """Count as a coroutine. The model waits until the file ``gate`` exists."""
    with here().body(run.run_id, attempt=run.attempt):
        if not run.resumed:
            run.conversation.append(Message.user(f"count to {n}"))

        async def answer(conversation: Conversation) -> dict[str, Any]:
            while not Path(gate).exists():
                await asyncio.sleep(0.2)
            return model(run, conversation, 0)

        async def add(x: int) -> int:
            here().call(run.run_id, f"tool {x}")
            await asyncio.sleep(0)
            return x + 1

        async for _ in run.iterations(limit=n):
            reply = await run.llm(answer, run.conversation)
            for call in reply.tool_calls:
                run.state["sum"] = run.state.get("sum", 0) + await run.tool(call, add)
        return [run.state["sum"], len(run.conversation), run.conversation.digest]


@agent_task(name="manual", strategy=EveryN(1), max_retries=3)
def manual(run: AgentRun, n: int) -> list[str]:
    """Work without the helpers of the run, and emit the end of each iteration manually."""
    with here().body(run.run_id, attempt=run.attempt):
        while run.iteration < n:
            run.conversation.append(Message.user(f"iteration {run.iteration + 1}"))
            here().call(run.run_id, f"iteration {run.iteration + 1}")
            time.sleep(0.1)
            run.emit(CheckpointEvent.ITERATION)
        return [message.text for message in run.conversation.messages]


def _say(agent_id: str, what: str) -> None:
    here().call(agent_id, what)
    time.sleep(0.1)


@agent_task(
    name="talk",
    strategy=EveryN(1),
    max_retries=3,
    retry_backoff=False,
    # Long enough for another agent to be executed in the free slot.
    default_retry_delay=4,
    iterations_per_task=1,
)
def talk(run: AgentRun, name: str, iterations: int, fails_once: bool = False) -> list[str]:
    """Say its name in each iteration. Return to the queue after each, and fail once if asked to."""
    with here().body(run.agent_id, run=name, attempt=run.attempt):
        for iteration in run.iterations(limit=iterations):
            run.step("say", _say, run.agent_id, f"{name} {iteration}")
            run.conversation.append(Message.user(f"{name} {iteration}"))
            if fails_once and iteration == 1 and not run.task.request.retries:
                raise RuntimeError("once")
        return [message.text for message in run.conversation.messages]


@agent_task(name="killed_at_its_end", strategy=EveryN(1))
def killed_at_its_end(run: AgentRun, n: int, marker: str) -> list[Any]:
    """Kill the process once, when the end is recorded and Celery does not have the result."""
    return _count(run, n, 0.02)


@agent_task(name="poison")
def poison(run: AgentRun) -> None:
    """Kill its own process at once, in every attempt."""
    here().note(run.run_id, "poisoned", attempt=run.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@agent_task(name="reluctant", strategy="never")
def reluctant(run: AgentRun, hand_offs: int) -> int:
    """Record nothing. In each of the first attempts, wait until the worker shuts down."""
    here().note(run.run_id, "attempt", attempt=run.attempt)
    while run.attempt <= hand_offs:
        time.sleep(0.02)
        run.emit(CheckpointEvent.LLM_RESPONSE)
    return run.attempt


@shared_task(name="length")
def length(value: list[Any]) -> int:
    """Return the length of the conversation of the agent before it in a chain."""
    here().call("", "length")
    return int(value[1])


@shared_task(name="weigh")
def weigh() -> int:
    """Return the number of objects in this process. It is slow, so that every process gets one."""
    time.sleep(0.05)
    gc.collect()
    return len(gc.get_objects())


def _note_recorded(run: AgentRun, event: CheckpointEvent, **_: Any) -> None:
    if event in _CALLS:
        here().note(run.run_id, "recorded", name=f"{_CALLS[event]} {run.iteration}")


def _die_once(sender: Any, run: AgentRun | None, **_: Any) -> None:
    if run is None or sender.name != "killed_at_its_end":
        return
    marker = Path(sender.request.args[1])
    if not marker.exists():
        marker.touch()
        here().killed(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


def _note_failed_checkpoint(run: AgentRun, **_: Any) -> None:
    here().note(run.run_id, "checkpoint failed")


def _note_hand_off(run: AgentRun, **_: Any) -> None:
    here().note(run.run_id, "handed off", attempt=run.attempt)


if is_worker():  # the tests import this module too
    signals.checkpoint_event.connect(_note_recorded, weak=False, dispatch_uid="scenarios.recorded")
    signals.agent_finished.connect(_die_once, weak=False, dispatch_uid="scenarios.finished")
    signals.checkpoint_failed.connect(
        _note_failed_checkpoint, weak=False, dispatch_uid="scenarios.failed"
    )
    signals.agent_handed_off.connect(_note_hand_off, weak=False, dispatch_uid="scenarios.handed_off")
