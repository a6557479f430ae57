"""Agents for the tests. The model is a function of the iteration and the conversation.

The ledger counts the calls that were really made.
"""

from __future__ import annotations

import time
from typing import Any

from celery_ckpt import AgentRun, Conversation, EveryN, Message, agent_task
from tests.support.ledger import here


def _call(run: AgentRun, name: str, seconds: float) -> None:
    here().call(run.run_id, name)
    time.sleep(seconds)


def model(run: AgentRun, conversation: Conversation, seconds: float) -> dict[str, Any]:
    """Return a reply that asks for one tool call, with the iteration as its argument."""
    number = run.iteration
    _call(run, f"llm {number}", seconds)
    arguments = f'{{"x": {number}}}'
    call = {"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {
        "role": "assistant",
        "content": f"iteration {number} of {len(conversation)}",
        "tool_calls": [call],
    }


@agent_task(strategy=EveryN(1), max_retries=3)
def research(run: AgentRun, n: int, seconds: float = 0.1) -> list[Any]:
    """Make ``n`` iterations, each with a call of the model and of a tool. The result depends on all."""
    with here().body(run.run_id, attempt=run.attempt):
        if not run.resumed:
            run.conversation.append(Message.user(f"count to {n}"))

        def add(x: int) -> int:
            _call(run, f"tool {x}", seconds)
            return x + 1

        for _ in run.iterations(limit=n):
            reply = run.llm(model, run, run.conversation, seconds)
            for call in reply.tool_calls:
                result = run.tool(call, add)
                run.state["sum"] = run.state.get("sum", 0) + result
        return [run.state["sum"], len(run.conversation), run.conversation.digest]


@agent_task(max_retries=3, retry_backoff=False, default_retry_delay=0)
def flaky(run: AgentRun, failures: int) -> int:
    """Fail in the first attempts."""
    run.step("once", _call, run, "once", 0)
    if run.attempt <= failures:
        raise RuntimeError(f"attempt {run.attempt}")
    return run.attempt


@agent_task(strategy="never")
def nothing(run: AgentRun, seconds: float = 0.0) -> int:
    """Do nothing that needs a checkpoint."""
    time.sleep(seconds)
    return 1
