"""An agent that puts a secret in every place where an agent can keep data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery_ckpt import AgentRun, Conversation, EveryN, Message, agent_task

MODULE = "tests.support.tasks.secret_agent"
SECRET = "Schwertfisch-ü-7731"


def _model(conversation: Conversation, n: int) -> dict[str, Any]:
    function = {"name": "find", "arguments": json.dumps({"what": f"{SECRET} {n}"})}
    call = {"id": f"c{n}", "type": "function", "function": function}
    return {"role": "assistant", "content": f"I know {SECRET}", "tool_calls": [call]}


def _find(what: str) -> dict[str, str]:
    return {"found": what}


@agent_task(name="hide", strategy=EveryN(1), max_retries=2, retry_backoff=False, default_retry_delay=0)
def hide(run: AgentRun, marker: str) -> int:
    """Fail once, change a step in the retry, hand off once; return the number of the attempt."""
    if not run.resumed:
        run.conversation.append(Message.user(f"remember {SECRET}"))
    run.metadata["who"] = SECRET
    for n in run.iterations(limit=5):
        run.state[f"key {SECRET}"] = f"value {SECRET}"
        reply = run.llm(_model, run.conversation, n)
        for call in reply.tool_calls:
            run.tool(call, _find)
        again = Path(marker).exists()
        run.step(f"step {n}", _find, f"{SECRET}, again: {again}" if n == 2 else SECRET)
        if n == 2 and not again:
            Path(marker).touch()
            raise ConnectionError("once more")
        run.checkpoint(note=SECRET)
    return run.attempt


@agent_task(name="blurt", strategy=EveryN(1), max_retries=0)
def blurt(run: AgentRun, what: str, fails: bool) -> str:
    """Take the secret as an argument, and return it or fail with it."""
    run.conversation.append(Message.user(what))
    run.step("look", _find, what)
    if fails:
        raise RuntimeError(what)
    return what
