"""Things to put into a store."""

from __future__ import annotations

from itertools import count
from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.conversation import Conversation
from celery_ckpt.messages import Message
from celery_ckpt.records import RunRecord, Step

_numbers = count(1)


def make_message(text: str | None = None) -> Message:
    """A message of a user; no two are equal unless their texts are given."""
    return Message.user(f"message {next(_numbers)}" if text is None else text)


def make_conversation(messages: int = 3) -> Conversation:
    """A conversation with a system prompt and so many messages."""
    conversation = Conversation().with_system_prompt("You are a test.")
    for _ in range(messages):
        conversation.append(make_message())
    return conversation


def make_checkpoint(
    agent_id: str = "agent", conversation: Conversation | None = None, iteration: int = 1, **fields: Any
) -> Checkpoint:
    """A new checkpoint; of a small new conversation, unless one is given."""
    conversation = make_conversation() if conversation is None else conversation
    return Checkpoint.new(agent_id, conversation, iteration, **fields)


def make_step(
    agent_id: str = "agent", run_id: str = "run", key: str | None = None, **fields: Any
) -> Step:
    """A step with some value."""
    key = key or f"step-{next(_numbers)}"
    return Step(agent_id=agent_id, run_id=run_id, key=key, **{"value": {"of": key}, **fields})


def make_run(agent_id: str = "agent", run_id: str | None = None, **fields: Any) -> RunRecord:
    """A run that was just sent."""
    fields = {"task": "tests.agent", "created_at": system_clock.now(), **fields}
    return RunRecord(agent_id=agent_id, run_id=run_id or f"run-{next(_numbers)}", **fields)
