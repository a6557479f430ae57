"""Answers to tool calls: the shape each provider wants, in the order in which the model asked.

Tools may run side by side and end in any order. What comes early is held: OpenAI's shapes take one
message a call, Anthropic's takes all results of an answer in one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from celery_ckpt.conversation import Conversation
from celery_ckpt.json_values import encode
from celery_ckpt.messages import Message, ToolCall

#: A call's id, and the message that asks for it: some providers number their calls anew every time.
Question = tuple[str, Message]


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
    asking: Message

    @property
    def question(self) -> Question:
        return self.call_id, self.asking


class ToolResults:
    """Holds results until it is their turn, then appends them. Thread-safe.

    A call that the conversation has an answer to already is never answered again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[_Held] = []

    def add(
        self, conversation: Conversation, call: ToolCall, result: Any, asking: Message | None = None
    ) -> None:
        """Take a result; append what can be appended now.

        ``asking`` is the message that asked; without it, the last one that asks for that id.
        """
        with self._lock:
            messages = conversation.messages
            if asking is None and (at := asked_last(messages, call.id)) is not None:
                asking = messages[at]
            waiting = waiting_calls(messages, asking)
            if asking is None or waiting is None:
                if not any(call.id in message.answers for message in messages):
                    conversation.take(answer(asking, call, result))
                return
            held = _Held(call.id, text_of(result), asking)
            if self._count(held.question) < waiting.count(held.question):
                self._held.append(held)
            if waiting:
                self._append_in_turn(conversation, waiting)

    def _count(self, question: Question) -> int:
        return sum(held.question == question for held in self._held)

    def flush(self, conversation: Conversation) -> None:
        """Append all that is held, in order, with gaps where no result has come."""
        with self._lock:
            while self._held:
                first = self._held[0]
                waiting = waiting_calls(conversation.messages, first.asking)
                if waiting is None:
                    # A compaction took the question away; the answer is kept all the same.
                    self._append(conversation, [first])
                elif ready := self._ready(waiting, gaps=True):
                    self._append(conversation, ready)
                else:
                    # Somebody else has answered it meanwhile.
                    self._held.remove(first)

    def _append_in_turn(self, conversation: Conversation, waiting: list[Question]) -> None:
        ready = self._ready(waiting, gaps=False)
        if not _is_anthropic(waiting[0][1]) or len(ready) == len(waiting):
            self._append(conversation, ready)

    def _ready(self, waiting: list[Question], *, gaps: bool) -> list[_Held]:
        """What is held of these calls, in their order: all of it, or what comes before a gap."""
        left, ready = list(self._held), []
        for question in waiting:
            held = next((held for held in left if held.question == question), None)
            if held is not None:
                left.remove(held)
                ready.append(held)
            elif not gaps:
                break
        return ready

    def _append(self, conversation: Conversation, ready: list[_Held]) -> None:
        together = [(held.call_id, held.text) for held in ready if _is_anthropic(held.asking)]
        if together:
            conversation.take(_anthropic(together))
        for held in ready:
            if not _is_anthropic(held.asking):
                conversation.take(_openai(held.asking, held.call_id, held.text))
            self._held.remove(held)


def waiting_calls(messages: list[Message], asking: Message | None) -> list[Question] | None:
    """The unanswered calls of the model's turn that this message belongs to, in order.

    ``None`` if there is no such message. A turn is several messages in OpenAI's Responses API.
    """
    own = next((n for n in reversed(range(len(messages))) if messages[n] == asking), None)
    if own is None:
        return None
    begin = end = own
    while begin > 0 and _is_the_models(messages[begin - 1]):
        begin -= 1
    while end < len(messages) and _is_the_models(messages[end]):
        end += 1
    asked = [(call.id, message) for message in messages[begin:end] for call in message.tool_calls]
    return _without(asked, _answered(messages[end:], {call_id for call_id, _ in asked}))


def _answered(messages: list[Message], asked: set[str]) -> list[str]:
    """The answers to these calls in what follows, up to where one of the ids is used anew."""
    answered: list[str] = []
    for message in messages:
        if any(call.id in asked for call in message.tool_calls):
            break
        answered += message.answers
    return answered


def _without(asked: list[Question], answered: list[str]) -> list[Question]:
    waiting = []
    for call_id, message in asked:
        if call_id in answered:
            # One answer answers one call: some models use an id twice.
            answered.remove(call_id)
        else:
            waiting.append((call_id, message))
    return waiting


def asked_last(messages: list[Message], call_id: str) -> int | None:
    """Where the last message is that asks for this call."""
    places = reversed(range(len(messages)))
    return next((n for n in places if any(c.id == call_id for c in messages[n].tool_calls)), None)


def _is_the_models(message: Message) -> bool:
    kind = message.json_object.get("type")
    if message.role is not None:
        return message.role == "assistant"
    return isinstance(kind, str) and not kind.endswith("_output")
