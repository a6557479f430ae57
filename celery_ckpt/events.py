"""The events after which a checkpoint may be taken."""

from __future__ import annotations

from enum import StrEnum


class CheckpointEvent(StrEnum):
    """Something that the agent did. A strategy decides whether a checkpoint follows."""

    #: A tool call returned, and its result is in the conversation.
    TOOL_CALL_COMPLETE = "tool_call_complete"
    #: The model replied, and its message is in the conversation.
    LLM_RESPONSE = "llm_response"
    #: An iteration of the agent's loop ended.
    ITERATION = "iteration"
