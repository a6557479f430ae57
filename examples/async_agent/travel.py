"""An async agent: its tools run in parallel, and many agents share one worker process."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from typing import Any

from celery import Celery
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from celery_ckpt import AfterLlmResponse, AfterToolCall, AgentRun, Conversation, Message, agent_task

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")
MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")

app = Celery("travel", broker=f"{REDIS}/0", backend=f"{REDIS}/0")
app.conf.ckpt_store_url = f"{REDIS}/1"
app.conf.ckpt_lease_ttl = 3  # seconds until a dead worker is noticed; the default is 30


async def weather(city: str) -> dict[str, Any]:
    """Return the weather in a city, after a while."""
    await asyncio.sleep(0.5)
    return {"city": city, "sky": "clear" if len(city) % 2 else "rain"}


TOOLS = {"weather": weather}
SCHEMAS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


@cache
def client() -> AsyncOpenAI:
    """Return one client for all agents of this process: they share its event loop."""
    return AsyncOpenAI()


async def ask_model(conversation: Conversation) -> ChatCompletion:
    """Return the model's reply; ``run.llm`` extracts the message."""
    messages: list[Any] = [message.to_dict() for message in conversation]
    return await client().chat.completions.create(model=MODEL, messages=messages, tools=SCHEMAS)


@agent_task(strategy=AfterToolCall() | AfterLlmResponse())
async def travel(run: AgentRun, question: str) -> str:
    """Advise a traveller. Tool results are appended in the order of the model's tool calls."""
    if not run.resumed:
        run.conversation.append(Message.user(question))
    async for _ in run.iterations(limit=20):
        reply = await run.llm(ask_model, run.conversation)
        if not reply.tool_calls:
            return reply.text
        await run.tools(reply, TOOLS)
    raise RuntimeError("no answer in 20 iterations")
