"""The agent of the service: what a worker runs, and what the service sends."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from celery import Celery
from openai import OpenAI
from openai.types.chat import ChatCompletion

from celery_ckpt import AfterLlmResponse, AfterToolCall, AgentRun, Conversation, Message, agent_task

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")
MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")

app = Celery("assistant", broker=f"{REDIS}/0", backend=f"{REDIS}/0")
app.conf.ckpt_store_url = f"{REDIS}/1"
app.conf.ckpt_lease_ttl = 3  # seconds until a dead worker is noticed; the default is 30

STOCK = {"tea": 12, "coffee": 0, "sugar": 3}


def stock(item: str) -> dict[str, Any]:
    """Return how many of an item are in stock."""
    return {"item": item, "count": STOCK.get(item, 0)}


TOOLS = {"stock": stock}
SCHEMAS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "stock",
            "description": "How many of an item there are.",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}},
                "required": ["item"],
            },
        },
    }
]


@cache
def client() -> OpenAI:
    """Return the client of this worker process, made on first use: connections survive no fork."""
    return OpenAI()


def ask_model(conversation: Conversation) -> ChatCompletion:
    """Return the model's reply; ``run.llm`` extracts the message."""
    messages: list[Any] = [message.to_dict() for message in conversation]
    return client().chat.completions.create(model=MODEL, messages=messages, tools=SCHEMAS)


# The service can show what is saved: here, every reply of the model and every tool result. The app is
# passed because FastAPI uses many threads, and Celery's "current app" exists in one thread only.
@agent_task(app=app, strategy=AfterToolCall() | AfterLlmResponse())
def assist(run: AgentRun, question: str) -> str:
    """Answer a customer."""
    if not run.resumed:
        run.conversation.append(Message.user(question))
    for _ in run.iterations(limit=20):
        reply = run.llm(ask_model, run.conversation)
        if not reply.tool_calls:
            return reply.text
        run.tools(reply, TOOLS)
    raise RuntimeError("no answer in 20 iterations")
