"""The part of the state machine that writes all of an agent anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import rule

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import Conversation
from celery_ckpt.messages import Message
from celery_ckpt.records import AgentContents, Lease
from celery_ckpt.store import CheckpointStore

NAMES = ("a", "b", "{a}")
AGENTS = st.sampled_from(NAMES)


class _Machine(Protocol):
    model: CheckpointStore
    store: CheckpointStore

    def _lease(self, pick: int) -> tuple[Lease | None, Lease | None]: ...

    def _both(self, on_model: Callable[[], Any], on_store: Callable[[], Any]) -> Any: ...


class RewritingRules:
    """Rules for ``StoreMachine``."""

    @rule(agent_id=AGENTS, hold=st.integers(-1, 2), is_any=st.booleans())
    def write_anew(self: _Machine, agent_id: str, hold: int, is_any: bool) -> None:
        """Put others in the place of all that an agent has, or look and leave it."""
        model_lease, store_lease = self._lease(hold)

        def change(contents: AgentContents) -> AgentContents | None:
            return emphasized(contents) if is_any else None

        results = self._both(
            lambda: self.model.rewrite(agent_id, change, model_lease),
            lambda: self.store.rewrite(agent_id, change, store_lease),
        )
        assert results in (None, (True, True))


def emphasized(contents: AgentContents) -> AgentContents:
    """The same contents, each said a bit louder."""
    return AgentContents(
        [_louder(checkpoint) for checkpoint in contents.checkpoints],
        [step.model_copy(update={"value": [step.value]}) for step in contents.steps],
        [run.model_copy(update={"envelope": {"was": run.envelope}}) for run in contents.runs],
    )


def _louder(checkpoint: Checkpoint) -> Checkpoint:
    changes: dict[str, Any] = {"conversation": _shouted(checkpoint.conversation)}
    if checkpoint.entry is not None:
        entered = _shouted(checkpoint.entry.conversation)
        changes["entry"] = checkpoint.entry.model_copy(update={"conversation": entered})
    return checkpoint.model_copy(update=changes).with_metadata("loud", "yes")


def _shouted(conversation: Conversation) -> Conversation:
    messages = [Message.of({**message.to_dict(), "loud": True}) for message in conversation]
    return Conversation(conversation.max_tokens, messages)
