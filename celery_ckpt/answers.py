"""Answers to tool calls: the shape each provider wants, in the order in which the model asked.

Tools may run side by side and end in any order. What comes early is held: OpenAI's shapes take one
message a call, Anthropic's takes all results of an answer in one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from celery_ckpt.conversation import Conversation
from celery_ckpt.jsonvalues import encode
from celery_ckpt.messages import Message, ToolCall

#: Calls that have no answer yet, in order, each with the message that asks for it.
Waiting = list[tuple[str, Message]]


def text_of(result: Any) -> str:
    """A tool's result for the model: a text as it is, anything else as compact JSON."""
    return result if isinstance(result, str) else encode(result).decode()


def answer(asking: Message | None, call: ToolCall, result: Any) -> Message:
    """One call's result, in the shape of the message that asked for it (``None``: OpenAI chat)."""
    if asking is not None and _is_anthropic(asking):
        return _anthropic([(call.id, text_of(result))])
    return _openai(asking, call.id, text_of(result))


def _openai(asking: Message | None, call_id: str, text: str) -> Message:
    kind = asking.json_object.get("type") if asking is not None else None
    if isinstance(kind, str) and kind.endswith("_call"):
        return Message.of({"type": f"{kind}_output", "call_id": call_id, "output": text})
    return Message.tool(text, call_id)


def _anthropic(results: list[tuple[str, str]]) -> Message:
    return Message.user(
        [{"type": "tool_result", "tool_use_id": call_id, "content": text} for call_id, text in results]
    )


def _is_anthropic(asking: Message) -> bool:
    return isinstance(asking.json_object.get("content"), list) and bool(asking.tool_calls)


@dataclass(frozen=True)
class _Held:
    call_id: str
    text: str
    #: The message that asked, as it was when the result came: a compaction may take it away.
    asking: Message


class Answers:
    """Holds results until it is their turn, then appends them. Thread-safe.

    A call that the conversation has an answer to already is never answered again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[_Held] = []

    def add(self, conversation: Conversation, call: ToolCall, result: Any) -> None:
        """Take a result; append what can be appended now."""
        with self._lock:
            messages = conversation.messages
            waiting = waiting_calls(messages, call.id)
            if waiting is None:
                if not any(call.id in message.answers for message in messages):
                    conversation.append(answer(None, call, result))
                return
            asked = [asking for call_id, asking in waiting if call_id == call.id]
            already = sum(held.call_id == call.id for held in self._held)
            if already < len(asked):
                self._held.append(_Held(call.id, text_of(result), asked[already]))
                self._append_in_turn(conversation, waiting)

    def flush(self, conversation: Conversation) -> None:
        """Append all that is held, in order, with gaps where no result has come."""
        with self._lock:
            while self._held:
                first = self._held[0]
                waiting = waiting_calls(conversation.messages, first.call_id)
                if waiting is None:
                    # A compaction took the question away; the answer is kept all the same.
                    self._append(conversation, [first])
                elif ready := self._ready(waiting, gaps=True):
                    self._append(conversation, ready)
                else:
                    # Somebody else has answered it meanwhile.
                    self._held.remove(first)

    def _append_in_turn(self, conversation: Conversation, waiting: Waiting) -> None:
        ready = self._ready(waiting, gaps=False)
        if not _is_anthropic(waiting[0][1]) or len(ready) == len(waiting):
            self._append(conversation, ready)

    def _ready(self, waiting: Waiting, *, gaps: bool) -> list[_Held]:
        """What is held of these calls, in their order: all of it, or what comes before a gap."""
        left, ready = list(self._held), []
        for call_id, _ in waiting:
            held = next((held for held in left if held.call_id == call_id), None)
            if held is not None:
                left.remove(held)
                ready.append(held)
            elif not gaps:
                break
        return ready

    def _append(self, conversation: Conversation, ready: list[_Held]) -> None:
        together = [(held.call_id, held.text) for held in ready if _is_anthropic(held.asking)]
        if together:
            conversation.append(_anthropic(together))
        for held in ready:
            if not _is_anthropic(held.asking):
                conversation.append(_openai(held.asking, held.call_id, held.text))
            self._held.remove(held)


def waiting_calls(messages: list[Message], call_id: str) -> Waiting | None:
    """The unanswered calls of the model's turn that asked for this one last, each with its message.

    ``None`` if no message asks for it. A turn is several messages in OpenAI's Responses API.
    """
    last = next((n for n in reversed(range(len(messages))) if _asks(messages[n], call_id)), None)
    if last is None:
        return None
    begin = end = last
    while begin > 0 and _is_the_models(messages[begin - 1]):
        begin -= 1
    while end < len(messages) and _is_the_models(messages[end]):
        end += 1
    asked = [(call.id, message) for message in messages[begin:end] for call in message.tool_calls]
    answered = [one for message in messages[end:] for one in message.answers]
    return _without(asked, answered)


def _without(asked: Waiting, answered: list[str]) -> Waiting:
    waiting = []
    for call_id, message in asked:
        if call_id in answered:
            # One answer answers one call: some models use an id twice.
            answered.remove(call_id)
        else:
            waiting.append((call_id, message))
    return waiting


def _asks(message: Message, call_id: str) -> bool:
    return any(call.id == call_id for call in message.tool_calls)


def _is_the_models(message: Message) -> bool:
    kind = message.json_object.get("type")
    if message.role is not None:
        return message.role == "assistant"
    return isinstance(kind, str) and not kind.endswith("_output")
