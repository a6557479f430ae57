"""Checkpoints, steps and runs to put into a store."""

from __future__ import annotations

from itertools import count
from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.conversation import Conversation
from celery_ckpt.messages import Message
from celery_ckpt.records import AgentContents, RunRecord, Step

_numbers = count(1)


def make_message(text: str | None = None) -> Message:
    """Return a user message. Without ``text``, no two are equal."""
    return Message.user(f"message {next(_numbers)}" if text is None else text)


def make_conversation(messages: int = 3) -> Conversation:
    """Return a conversation with a system prompt and this many messages."""
    conversation = Conversation().with_system_prompt("You are a test.")
    for _ in range(messages):
        conversation.append(make_message())
    return conversation


def make_checkpoint(
    agent_id: str = "agent", conversation: Conversation | None = None, iteration: int = 1, **fields: Any
) -> Checkpoint:
    """Return a new checkpoint, by default of a small new conversation."""
    conversation = make_conversation() if conversation is None else conversation
    return Checkpoint.new(agent_id, conversation, iteration, **fields)


def make_step(
    agent_id: str = "agent", run_id: str = "run", key: str | None = None, **fields: Any
) -> Step:
    """Return a step with a value of its own."""
    key = key or f"step-{next(_numbers)}"
    return Step(agent_id=agent_id, run_id=run_id, key=key, **{"value": {"of": key}, **fields})


def make_run(agent_id: str = "agent", run_id: str | None = None, **fields: Any) -> RunRecord:
    """Return the record of a run that was just sent."""
    fields = {"task": "tests.agent", "created_at": system_clock.now(), **fields}
    return RunRecord(agent_id=agent_id, run_id=run_id or f"run-{next(_numbers)}", **fields)


def changed_contents(contents: AgentContents) -> AgentContents:
    """Return the contents of an agent with every checkpoint, step and run changed."""

    def changed(conversation: Conversation) -> Conversation:
        messages = [Message.of({**message.to_dict(), "loud": True}) for message in conversation]
        return Conversation(conversation.max_tokens, messages)

    checkpoints = []
    for checkpoint in contents.checkpoints:
        changes: dict[str, Any] = {"conversation": changed(checkpoint.conversation)}
        if entry := checkpoint.entry:
            conversation = changed(entry.conversation)
            changes["entry"] = entry.model_copy(update={"conversation": conversation})
        checkpoints.append(checkpoint.model_copy(update=changes).with_metadata("loud", "yes"))
    return AgentContents(
        checkpoints,
        [step.model_copy(update={"value": [step.value]}) for step in contents.steps],
        [run.model_copy(update={"envelope": {"was": run.envelope}}) for run in contents.runs],
        contents.log,
    )
