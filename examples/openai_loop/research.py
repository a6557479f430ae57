"""A research agent on OpenAI's chat completions: the usual loop, made durable by one decorator."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from celery import Celery
from openai import OpenAI
from openai.types.chat import ChatCompletion

from celery_ckpt import AgentRun, Conversation, EveryN, Message, agent_task

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")
MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")

app = Celery("research", broker=f"{REDIS}/0", backend=f"{REDIS}/0")
app.conf.ckpt_store_url = f"{REDIS}/1"
app.conf.ckpt_lease_ttl = 3  # seconds until a dead worker is noticed; the default is 30

LIBRARY = {
    "sky": "Sunlight is scattered by molecules of air, short waves far more than long ones.",
    "sunset": "In the evening the light has a long way through the air, and little blue is left of it.",
}


def look_up(topic: str) -> str:
    """Return what the library says about a topic."""
    return LIBRARY.get(topic, f"There is nothing about {topic!r}; there is: {', '.join(LIBRARY)}.")


TOOLS = {"look_up": look_up}
SCHEMAS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "What the library says about a topic.",
            "parameters": {
                "type": "object",
                "properties": {"topic": {"type": "string"}},
                "required": ["topic"],
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


@agent_task(strategy=EveryN(1))
def research(run: AgentRun, question: str) -> str:
    """Answer a question with the help of the library."""
    if not run.resumed:
        run.conversation.append(Message.user(question))
    for _ in run.iterations(limit=20):
        reply = run.llm(ask_model, run.conversation)
        if not reply.tool_calls:
            return reply.text
        run.tools(reply, TOOLS)
    raise RuntimeError("no answer in 20 iterations")
