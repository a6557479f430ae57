"""What an agent can do that is worth a checkpoint."""

from __future__ import annotations

from enum import StrEnum


class CheckpointEvent(StrEnum):
    """Something the agent did; a strategy decides whether a checkpoint follows."""

    #: A tool call returned and its result is in the conversation.
    TOOL_CALL_COMPLETE = "tool_call_complete"
    #: The model answered and its message is in the conversation.
    LLM_RESPONSE = "llm_response"
    #: A turn of the agent's loop ended.
    ITERATION = "iteration"
