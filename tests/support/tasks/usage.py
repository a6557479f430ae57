"""An agent that reports its usage."""

from __future__ import annotations

from typing import Any

from celery_ckpt import AgentRun, Usage, agent_task
from tests.support.ledger import here

MODULE = "tests.support.tasks.usage"


def cost(model: str, usage: Usage) -> float:
    """Return a cost of 1 for each token of input."""
    return float(usage.input_tokens)


def _ask(run: AgentRun, iteration: int) -> dict[str, Any]:
    here().call(run.run_id, f"ask {iteration}")
    return {
        "model": "big",
        "choices": [{"message": {"role": "assistant", "content": f"answer {iteration}"}}],
        "usage": {"prompt_tokens": 10**iteration, "completion_tokens": 1},
    }


@agent_task(strategy="every:1", max_retries=3)
def spend(run: AgentRun, iterations: int) -> dict[str, Any]:
    """Ask once per iteration, and return the usage."""
    with here().body(run.run_id, attempt=run.attempt):
        for iteration in run.iterations(limit=iterations):
            reply = run.llm(_ask, run, iteration)
        return {"answer": reply.text, **run.usage.to_dict()}
