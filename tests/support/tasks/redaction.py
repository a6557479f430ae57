"""An agent that handles a secret, in an app that redacts it."""

from __future__ import annotations

import json
import time
from typing import Any

from celery_ckpt import AgentRun, Conversation, EveryN, Message, agent_task
from tests.support.ledger import here

MODULE = "tests.support.tasks.redaction"
SECRET = "swordfish"


def redact(value: Any, what: str) -> Any:
    """Replace the secret."""
    return json.loads(json.dumps(value).replace(SECRET, "[gone]"))


def _model(run: AgentRun, conversation: Conversation) -> dict[str, Any]:
    here().call(run.run_id, f"llm {run.iteration}")
    arguments = json.dumps({"n": run.iteration})
    call = {"id": f"c{run.iteration}", "type": "function"}
    function = {"name": "tool", "arguments": arguments}
    content = f"{SECRET} after {conversation.messages[-1].text}"
    return {"role": "assistant", "content": content, "tool_calls": [{**call, "function": function}]}


@agent_task(name="keep_secret_everywhere", strategy=EveryN(1), max_retries=0)
def keep_secret_everywhere(run: AgentRun, n: int, fails: bool = False) -> list[Any]:
    """Put the secret wherever a body can put text."""
    with here().body(run.run_id, attempt=run.attempt):

        def tool(n: int) -> str:
            here().call(run.run_id, f"tool {n}")
            time.sleep(0.1)
            return f"{SECRET} {n}"

        if not run.resumed:
            run.conversation.append(Message.user(f"my password is {SECRET}"))
        for _ in run.iterations(limit=n):
            reply = run.llm(_model, run, run.conversation)
            for call in reply.tool_calls:
                run.state["last"] = run.tool(call, tool)
        if fails:
            raise RuntimeError(f"about {SECRET}")
        return [run.state["last"], [message.text for message in run.conversation]]
