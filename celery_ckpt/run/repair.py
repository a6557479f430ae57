"""A conversation that providers accept: no tool call without a result.

A body that calls models on its own can be stopped between a call and its result. What then is a choice:

    leave       as it is; ``pending_tool_calls()`` names the calls, the body sees to them
    answer      each open call is answered with an error result, in its provider's shape
    take_back   everything from the first message with an open call on is taken back
"""

from __future__ import annotations

from typing import Literal, get_args

from celery_ckpt.conversation import Conversation
from celery_ckpt.run.tool_results import ToolResults

PendingCalls = Literal["leave", "answer", "take_back"]
POLICIES: tuple[str, ...] = get_args(PendingCalls)
#: What a model is told of a call that nobody finished.
INTERRUPTED = "error: the call was interrupted before it had a result"


def repaired(conversation: Conversation, policy: PendingCalls) -> Conversation:
    """The conversation as the policy wants it: itself if nothing is open."""
    if policy == "leave":
        return conversation
    open_calls = conversation.pending_tool_calls()
    if not open_calls:
        return conversation
    whole = conversation.copy()
    if policy == "take_back":
        names = {call.id for call in open_calls}
        messages = whole.messages
        asking = (i for i, m in enumerate(messages) if names & {call.id for call in m.tool_calls})
        whole.replace(messages[: next(asking)])
        return whole
    answers = ToolResults()
    for call in open_calls:
        answers.add(whole, call, INTERRUPTED)
    answers.flush(whole)
    return whole
