"""A research agent on Anthropic's messages API that remembers its earlier runs."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from anthropic import Anthropic
from anthropic.types import Message as Reply
from celery import Celery

from celery_ckpt import AgentRun, Conversation, EveryN, Message, agent_task

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")
MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-sonnet-4-5")
SYSTEM = "Answer in one sentence. Look things up; do not guess."

app = Celery("research", broker=f"{REDIS}/0", backend=f"{REDIS}/0")
app.conf.ckpt_store_url = f"{REDIS}/1"
app.conf.ckpt_lease_ttl = 3  # seconds until a dead worker is noticed; the default is 30

HEIGHTS = {"Zugspitze": 2962, "Mont Blanc": 4806, "Kebnekaise": 2097}


def height(mountain: str) -> dict[str, Any]:
    """Return the height of a mountain."""
    return {"mountain": mountain, "metres": HEIGHTS.get(mountain)}


TOOLS = {"height": height}
SCHEMAS: list[Any] = [
    {
        "name": "height",
        "description": "How high a mountain is.",
        "input_schema": {
            "type": "object",
            "properties": {"mountain": {"type": "string"}},
            "required": ["mountain"],
        },
    }
]


@cache
def client() -> Anthropic:
    """Return the client of this worker process, made on first use: connections survive no fork."""
    return Anthropic()


def ask_model(conversation: Conversation) -> Reply:
    """Return the model's reply. ``run.llm`` keeps its role and content, which the API accepts back."""
    messages: list[Any] = [message.to_dict() for message in conversation]
    return client().messages.create(
        model=MODEL, max_tokens=1024, system=SYSTEM, messages=messages, tools=SCHEMAS
    )


@agent_task(strategy=EveryN(1))
def research(run: AgentRun, question: str) -> str:
    """Answer a question. The API expects all tool results of an iteration in one message."""
    if not run.resumed:
        run.conversation.append(Message.user(question))
    for _ in run.iterations(limit=20):
        reply = run.llm(ask_model, run.conversation)
        if not reply.tool_calls:
            return reply.text
        run.tools(reply, TOOLS)
    raise RuntimeError("no answer in 20 iterations")
