"""The results of tool calls in a conversation: their shapes, their order, and what is missing.

Each result is appended in the shape of the provider whose message asked for it, in the order in which
the model asked. Tools may run in parallel and end in any order, so a result may be pending until it can
be appended: OpenAI's shapes take one message per call, Anthropic's takes all results of a reply in one.

Providers accept no conversation that has a tool call without a result. A body that calls models itself
can be stopped between a call and its result. ``repaired`` applies one of three policies then:

    leave       change nothing; ``pending_tool_calls()`` returns the calls, and the body handles them
    answer      append an error result for each of these calls, in its provider's shape
    take_back   remove everything from the first message with such a call on
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Literal, get_args

from celery_ckpt.conversation import Conversation
from celery_ckpt.json_values import encode
from celery_ckpt.messages import Message, ToolCall, parts_of

PendingCalls = Literal["leave", "answer", "take_back"]
POLICIES: tuple[str, ...] = get_args(PendingCalls)
#: The result that a model reads of an interrupted call.
INTERRUPTED = "error: the call was interrupted before it had a result"

#: A call's id and the message that asks for it: some providers reuse ids in every reply.
Question = tuple[str, Message]


def text_of(result: Any) -> str:
    """Return a tool's result as the model reads it: text as it is, anything else as compact JSON."""
    return result if isinstance(result, str) else encode(result).decode()


def result_message(asking: Message | None, call: ToolCall, result: Any) -> Message:
    """Return a call's result in the shape of the message that asked for it (``None``: OpenAI chat)."""
    if asking is not None and _is_one_message(asking):
        return _results_of(asking, [(call.id, text_of(result))])
    return _openai(asking, call.id, text_of(result))


def _openai(asking: Message | None, call_id: str, text: str) -> Message:
    kind = asking.json_object.get("type") if asking is not None else None
    if isinstance(kind, str) and kind.endswith("_call"):
        return Message.of({"type": f"{kind}_output", "call_id": call_id, "output": text})
    return Message.tool(text, call_id)


def _results_of(asking: Message, results: list[tuple[str, str]]) -> Message:
    """Return all results of a reply in one message."""
    if parts_of(asking.json_object) is None:
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in results]
        return Message.user(blocks)
    names = {call.id: call.name for call in asking.tool_calls}
    parts = [
        {"part_kind": "tool-return", "tool_name": names[i], "tool_call_id": i, "content": text}
        for i, text in results
    ]
    return Message.of({"kind": "request", "parts": parts})


def _is_one_message(asking: Message) -> bool:
    """True if all results of a reply are one message, as for Anthropic and pydantic-ai."""
    root = asking.json_object
    has_blocks = isinstance(root.get("content"), list) and bool(asking.call_ids)
    return has_blocks or parts_of(root) is not None


@dataclass(frozen=True)
class _PendingResult:
    call_id: str
    text: str
    asking: Message

    @property
    def question(self) -> Question:
        return self.call_id, self.asking


class ToolResults:
    """Keeps results until they can be appended in order, then appends them. Thread-safe.

    A call that already has a result in the conversation never gets a second one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[_PendingResult] = []

    def add(
        self, conversation: Conversation, call: ToolCall, result: Any, asking: Message | None = None
    ) -> None:
        """Add a result, and append what can be appended now.

        ``asking`` is the message that asked for the call; by default, the last one with its id.
        """
        with self._lock:
            messages = conversation.messages
            if asking is None and (at := asked_last(messages, call.id)) is not None:
                asking = messages[at]
            unanswered = unanswered_calls(messages, asking)
            if asking is None or unanswered is None:
                if not any(call.id in message.answers for message in messages):
                    conversation.take(result_message(asking, call, result))
                return
            pending = _PendingResult(call.id, text_of(result), asking)
            questions = [other.question for other in self._pending]
            if questions.count(pending.question) < unanswered.count(pending.question):
                self._pending.append(pending)
            if not unanswered:
                return
            ready = self._ready(unanswered, gaps=False)
            if not _is_one_message(unanswered[0][1]) or len(ready) == len(unanswered):
                self._append(conversation, ready)

    def flush(self, conversation: Conversation) -> None:
        """Append all pending results in order, with gaps where a result is missing."""
        with self._lock:
            while self._pending:
                first = self._pending[0]
                unanswered = unanswered_calls(conversation.messages, first.asking)
                if unanswered is None:
                    # A compaction removed the question. The result is kept all the same.
                    self._append(conversation, [first])
                elif ready := self._ready(unanswered, gaps=True):
                    self._append(conversation, ready)
                else:
                    # The body has appended a result itself.
                    self._pending.remove(first)

    def _ready(self, unanswered: list[Question], *, gaps: bool) -> list[_PendingResult]:
        """Return the pending results of these calls in order: all of them, or those before a gap."""
        left, ready = list(self._pending), []
        for question in unanswered:
            result = next((result for result in left if result.question == question), None)
            if result is not None:
                left.remove(result)
                ready.append(result)
            elif not gaps:
                break
        return ready

    def _append(self, conversation: Conversation, ready: list[_PendingResult]) -> None:
        together = [result for result in ready if _is_one_message(result.asking)]
        if together:
            results = [(result.call_id, result.text) for result in together]
            conversation.take(_results_of(together[0].asking, results))
        for result in ready:
            if result not in together:
                conversation.take(_openai(result.asking, result.call_id, result.text))
            self._pending.remove(result)


class Trial:
    """A conversation and its pending results, to be changed beside the real ones.

    ``adopt`` makes the same change to the real ones: what is not durable yet is not visible.
    """

    def __init__(self, results: ToolResults, conversation: Conversation) -> None:
        self._results, self._real = results, conversation
        with results._lock:
            self._pending, self._extent = list(results._pending), conversation.extent
        #: The copies to be changed.
        self.results = ToolResults()
        self.results._pending = list(self._pending)
        limits = conversation.max_tokens, conversation.redact
        self.conversation = Conversation.over(*self._extent, *limits)

    def adopt(self, conversation: Conversation) -> bool:
        """Change the real ones. Return False, and change nothing, if they have changed since.

        ``conversation`` is the real one by now: a body may have replaced it.
        """
        results = self._results
        with results._lock:
            if conversation is not self._real or results._pending != self._pending:
                return False
            if not conversation.become(self.conversation, self._extent):
                return False
            results._pending = self.results._pending
            return True


def repaired(conversation: Conversation, policy: PendingCalls) -> Conversation:
    """Return the conversation as the policy wants it: unchanged if every call has a result."""
    if policy == "leave":
        return conversation
    pending = conversation.pending_tool_calls()
    if not pending:
        return conversation
    whole = conversation.copy()
    if policy == "take_back":
        ids = {call.id for call in pending}
        messages = whole.messages
        asking = (i for i, m in enumerate(messages) if ids & {call.id for call in m.tool_calls})
        whole.replace(messages[: next(asking)])
        return whole
    results = ToolResults()
    for call in pending:
        results.add(whole, call, INTERRUPTED)
    results.flush(whole)
    return whole


def unanswered_calls(messages: list[Message], asking: Message | None) -> list[Question] | None:
    """Return the calls without a result of the model's reply that this message belongs to, in order.

    ``None`` if there is no such message. In OpenAI's Responses API, a reply is several messages.
    """
    places = reversed(range(len(messages)))
    own = next((n for n in places if messages[n] is asking or messages[n] == asking), None)
    if own is None:
        return None
    begin = end = own
    while begin > 0 and _is_of_model(messages[begin - 1]):
        begin -= 1
    while end < len(messages) and _is_of_model(messages[end]):
        end += 1
    asked = [(call_id, message) for message in messages[begin:end] for call_id in message.call_ids]
    answered = _answered(messages[end:], {call_id for call_id, _ in asked})
    unanswered = []
    for call_id, message in asked:
        if call_id in answered:
            # One result is for one call: some models use an id twice.
            answered.remove(call_id)
        else:
            unanswered.append((call_id, message))
    return unanswered


def _answered(messages: list[Message], asked: set[str]) -> list[str]:
    """Return the ids of the results in these messages, up to where one of the asked ids is reused."""
    answered: list[str] = []
    for message in messages:
        if any(call_id in asked for call_id in message.call_ids):
            break
        answered += message.answers
    return answered


def asked_last(messages: list[Message], call_id: str) -> int | None:
    """Return the index of the last message that asks for this call, or ``None``."""
    places = reversed(range(len(messages)))
    return next((n for n in places if call_id in messages[n].call_ids), None)


def _is_of_model(message: Message) -> bool:
    kind = message.json_object.get("type")
    if message.role is not None:
        return message.role == "assistant"
    return isinstance(kind, str) and not kind.endswith("_output")
