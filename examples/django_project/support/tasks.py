"""The agent's task. ``app.autodiscover_tasks()`` finds it like any other task."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.conf import settings
from openai import OpenAI
from openai.types.chat import ChatCompletion

from celery_ckpt import AgentRun, Conversation, Message, agent_task
from support.models import Ticket

MANUAL = {"battery": "Hold the button for ten seconds.", "noise": "Tighten the screw below."}


def manual(problem: str) -> str:
    """Return what the manual says about a problem."""
    return MANUAL.get(problem, "The manual does not mention it.")


TOOLS = {"manual": manual}
SCHEMAS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "manual",
            "description": "What the manual says about a problem.",
            "parameters": {
                "type": "object",
                "properties": {"problem": {"type": "string"}},
                "required": ["problem"],
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
    return client().chat.completions.create(
        model=settings.OPENAI_MODEL, messages=messages, tools=SCHEMAS
    )


@agent_task
def answer_ticket(run: AgentRun, ticket_id: int) -> None:
    """Answer a ticket. Writing the same answer twice is harmless, so it needs no step."""
    ticket = Ticket.objects.get(pk=ticket_id)
    if not run.resumed:
        run.conversation.append(Message.user(ticket.question))
    for _ in run.iterations(limit=20):
        reply = run.llm(ask_model, run.conversation)
        if not reply.tool_calls:
            Ticket.objects.filter(pk=ticket_id).update(answer=reply.text)
            return
        run.tools(reply, TOOLS)
    raise RuntimeError("no answer in 20 iterations")
