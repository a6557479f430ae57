"""A service that starts agents and streams their progress as server-sent events.

The stream is read from the store, not from the worker: it does not notice when a worker dies, a
client that reconnects continues where it was (``Last-Event-ID``), and the service itself may restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from assistant import app, assist
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel

from celery_ckpt import Agents, Message
from celery_ckpt.errors import AgentNotFound
from celery_ckpt.runtime.agents import AgentStatus

POLL_SECONDS = 0.2

api = FastAPI(title="Agents")
agents = Agents(app)


class Question(BaseModel):
    """The question of a client."""

    question: str


class Started(BaseModel):
    """The agent that answers."""

    agent_id: str


# Not async: FastAPI runs these in threads, because Celery and the store block on the network.
@api.post("/agents", status_code=202)
def start(asked: Question) -> Started:
    """Start an agent."""
    return Started(agent_id=assist.delay(asked.question).id)


@api.get("/agents/{agent_id}")
def status(agent_id: str) -> AgentStatus:
    """Return the status of an agent."""
    try:
        return agents.status(agent_id)
    except AgentNotFound:
        # The error's own text is not for clients: it names the store.
        raise HTTPException(404, f"There is no agent {agent_id!r}.") from None


@api.delete("/agents/{agent_id}", status_code=204, dependencies=[Depends(status)])
def cancel(agent_id: str) -> None:
    """Stop an agent at its next event."""
    agents.cancel(agent_id)


@api.get(
    "/agents/{agent_id}/events",
    response_class=EventSourceResponse,
    dependencies=[Depends(status)],
)
async def events(
    agent_id: str, last_event_id: Annotated[int, Header()] = 0
) -> AsyncIterator[ServerSentEvent]:
    """Stream each message when it is saved, numbered from 1, and then the outcome."""
    sent, seen = last_event_id, None
    while True:
        now = await asyncio.to_thread(agents.status, agent_id)
        is_over = now.status is None or now.status.is_final
        if is_over or now.checkpointed_at != seen:
            seen = now.checkpointed_at
            for message in (await asyncio.to_thread(_messages, agent_id))[sent:]:
                sent += 1
                yield ServerSentEvent(event="message", id=str(sent), data=message.to_dict())
        if is_over:
            ending = now.model_dump(mode="json", include={"status", "attempts", "error"})
            yield ServerSentEvent(event="end", data=ending)
            return
        await asyncio.sleep(POLL_SECONDS)


def _messages(agent_id: str) -> list[Message]:
    latest = agents.latest(agent_id)
    return latest.conversation.messages if latest else []
