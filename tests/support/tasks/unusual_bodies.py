"""Agents with unusual bodies."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from celery.exceptions import Retry

from celery_ckpt import AgentRun, EveryN, Message, agent_task
from tests.support.ledger import here


def _asks_for(*numbers: int) -> dict[str, Any]:
    def call(number: int) -> dict[str, Any]:
        function = {"name": "square", "arguments": f'{{"number": {number}}}'}
        return {"id": f"c{number}", "type": "function", "function": function}

    return {"role": "assistant", "content": None, "tool_calls": [call(number) for number in numbers]}


def _square(number: int) -> int:
    return number * number


@agent_task
def in_threads(run: AgentRun, iterations: int) -> int:
    """Run the tools in threads of the body."""
    for _ in run.iterations(limit=iterations):
        reply = run.llm(_asks_for, 1, 2, 3)
        with ThreadPoolExecutor(3) as threads:
            done = list(threads.map(lambda call: run.tool(call, _square), reply.tool_calls))
        run.state["sum"] = run.state.get("sum", 0) + sum(done)
    return int(run.state["sum"])


@agent_task(strategy="never")
def wants_no_checkpoints(run: AgentRun) -> int:
    """Change the conversation and the state although no checkpoint is saved."""
    run.conversation.append(Message.user("go"))
    run.state["squares"] = [run.step("square", _square, n) for n in run.iterations(limit=2)]
    return len(run.conversation)


@agent_task
def answers_only_the_second_call(run: AgentRun) -> int:
    """Return while the result of the first call is missing."""
    _, second = run.llm(_asks_for, 1, 2).tool_calls
    return run.tool(second, _square)


@agent_task(iterations_per_task=1)
def factorial(run: AgentRun, number: int) -> list[Any]:
    """Call itself as a plain function, and return the idempotency keys of all calls."""
    for _ in run.iterations(limit=2):
        product, keys = (1, []) if number <= 1 else factorial(number - 1)
        run.state["all"] = [number * product, [*keys, run.idempotency_key("pay")]]
    return list(run.state["all"])


@agent_task
async def inner(run: AgentRun, number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@agent_task
async def outer(run: AgentRun, number: int, how: str) -> int:
    """Call an async agent as a plain function, on the loop or in a thread."""
    return int(inner(number) if how == "on the loop" else await asyncio.to_thread(inner, number))


@agent_task(max_retries=0)
async def exits(run: AgentRun, attempts: int) -> int:
    """Call ``sys.exit`` in the first attempts, as scripts do."""
    if run.attempt <= attempts:
        await asyncio.gather(run.step("exit", sys.exit, "enough"))
    return run.attempt


@agent_task
def retries_by_itself(run: AgentRun) -> int:
    """Raise ``Retry`` without having sent the retry."""
    if run.attempt == 1:
        raise Retry("some day")
    return run.attempt


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@agent_task(autoretry_for=())
def fails_speechless(run: AgentRun) -> None:
    raise Speechless


@agent_task
def returns_an_unserializable_value(run: AgentRun) -> Any:
    return run.step("think", lambda: 1) and object()


def _of_name(name: str) -> Any:
    """Return a body that changes a step in its second attempt, or finds a pending call of its first."""

    def changes(run: AgentRun) -> Any:
        here().note(run.run_id, "begin")
        if run.attempt > 1:
            return run.step("name", str.upper, "new")
        run.step("name", str.upper, "old")
        raise ConnectionError("once more")

    def interrupted(run: AgentRun) -> Any:
        if not run.resumed:
            run.conversation.append(Message.user("go"))
            run.conversation.append(_asks_for(1))
            run.checkpoint()
            raise ConnectionError("before the call was made")
        return [message.role for message in run.conversation], len(
            run.conversation.pending_tool_calls()
        )

    return {"changes": changes, "interrupted": interrupted}[name]


_SOON: dict[str, Any] = {"retry_backoff": False, "default_retry_delay": 0}
fails_if_changed = agent_task(name="fails_if_changed", on_changed="fail", **_SOON)(_of_name("changes"))
interrupted = {
    policy: agent_task(name=f"interrupted.{policy}", pending_calls=policy, **_SOON)(
        _of_name("interrupted")
    )
    for policy in ("leave", "answer", "take_back")
}


@agent_task(strategy=EveryN(1), retry_backoff=False, default_retry_delay=0)
def keeps_a_non_json_value(run: AgentRun, what: str) -> None:
    """Keep a value that JSON cannot hold, in every attempt."""
    for _ in run.iterations(limit=2):
        kept: dict[str, Any] = {"state": run.state, "metadata": run.metadata}[what]
        kept["when"] = datetime(2026, 1, 1, tzinfo=UTC)


@agent_task(autoretry_for=())
def retries_with_an_unserializable_argument(run: AgentRun, what: Any = None) -> None:
    """Call ``retry`` with an argument that a message cannot hold."""
    run.task.retry(args=(object(),), countdown=0)


@agent_task(autoretry_for=())
def fails_in_an_except(run: AgentRun) -> None:
    """Fail while it handles another error."""
    try:
        {}["the first error"]
    except KeyError:
        raise ValueError("the second error")  # noqa: B904


@agent_task(autoretry_for=())
def ends_its_process(run: AgentRun) -> None:
    """Call ``sys.exit`` in every attempt, as scripts do."""
    here().note(run.run_id, "exit")
    sys.exit(3)


@agent_task(track_started=False)
def reports_progress(run: AgentRun) -> None:
    """Report its progress with ``update_state``, as many tasks do."""
    for number in run.iterations():
        here().call(run.run_id, f"working {number}")
        run.task.update_state(state="PROGRESS", meta={"done": number})
        here().note(run.run_id, "progress")
