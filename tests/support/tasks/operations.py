"""Agents that tests inspect, cancel, resume and fork from outside."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from celery_ckpt import AfterLlmResponse, AgentRun, EveryN, Message, agent_task
from tests.support.ledger import here


def _think(run_id: str, name: str, seconds: float) -> None:
    here().call(run_id, name)
    time.sleep(seconds)


@agent_task(strategy=EveryN(1))
def endless(run: AgentRun, seconds: float = 0.05, limit: int | None = None) -> int:
    """Continue until it is cancelled, or to a limit."""
    with here().body(run.run_id, attempt=run.attempt):
        if not run.resumed:
            run.conversation.append(Message.user("begin"))
        for number in run.iterations(limit):
            run.step("think", _think, run.run_id, f"think {number}", seconds)
            run.conversation.append(Message.assistant(f"thought {number}"))
        return run.iteration


@agent_task(strategy=EveryN(1))
async def async_endless(run: AgentRun, seconds: float = 0.05) -> None:
    """Continue until it is cancelled, as a coroutine."""
    with here().body(run.run_id, attempt=run.attempt):
        async for number in run.iterations():
            await run.step("think", _async_think, run.run_id, f"think {number}", seconds)


async def _async_think(run_id: str, name: str, seconds: float) -> None:
    here().call(run_id, name)
    await asyncio.sleep(seconds)


@agent_task(strategy=AfterLlmResponse())
def calling(run: AgentRun) -> None:
    """Ask for two tools in every iteration."""
    with here().body(run.run_id, attempt=run.attempt):
        run.conversation.append(Message.user("begin"))
        for number in run.iterations():
            run.state["asked"] = number
            reply = run.llm(_two_calls)
            for call in reply.tool_calls:
                run.tool(call, lambda: _poll(run))


def _two_calls() -> dict[str, Any]:
    function = {"name": "wait", "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function} for number in (1, 2)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _poll(run: AgentRun) -> str:
    here().call(run.run_id, "tool")
    return "at last"


@agent_task(strategy=EveryN(1), autoretry_for=())
def needs_a_file(run: AgentRun, path: str) -> str:
    """Fail in the third iteration unless the file exists."""
    with here().body(run.run_id, attempt=run.attempt, retries=run.task.request.retries):
        for number in run.iterations(limit=4):
            run.step("think", _think, run.run_id, f"think {number}", 0)
            if number == 3 and not Path(path).exists():
                raise FileNotFoundError(path)
        return f"attempt {run.attempt}"


@agent_task(max_retries=3, retry_jitter=False, retry_backoff=60)
def backing_off(run: AgentRun) -> None:
    """Fail, with a retry after a minute."""
    here().call(run.run_id, "failing")
    raise RuntimeError("not now")


@agent_task
def remember(run: AgentRun, word: str) -> list[str]:
    """Add a word to the conversation of the agent, and return all of them."""
    run.conversation.append(Message.user(word))
    run.checkpoint(word=word)
    return [message.text for message in run.conversation.messages]
