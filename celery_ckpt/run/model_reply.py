"""The reply of a model: what a model function returned, as messages, exactly as received.

Clients wrap a message in several ways. Each is recognised by its shape, so no SDK is imported:

    choices: [{message}]            a chat completion: the message of its first choice
    message: {role, ...}            one choice of a completion
    output: [...]                   a response of OpenAI's Responses API: all of its items
    type: "message", stop_reason    an Anthropic message: its role and content, all that the API accepts
    role, or type                   a bare message, or an item of the Responses API
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import NotAMessage, NotJson
from celery_ckpt.json_values import kind_of
from celery_ckpt.messages import Message
from celery_ckpt.usage import Usage

#: The roles that providers know. Gemini calls its assistant "model".
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model")

_RETURN_THE_MESSAGE = (
    "Return the model's message: a dict with a role, a Message, the SDK's completion, or its message "
    "(completion.choices[0].message)."
)
_RETURN_THE_WHOLE = 'Return the whole message: {"role": "assistant", "content": [...]}.'
_READ_THE_STREAM = (
    "Read the stream to its end and return what it adds up to: stream.get_final_message() for "
    "Anthropic, stream.get_final_completion() or stream.get_final_response() for OpenAI."
)
_RAISE_INSTEAD = (
    "It contains no message. To retry the call in this case, raise an error in the function."
)

#: Parts of a message's content. They have a type, but they are not items of the Responses API.
_CONTENT_PARTS = {
    *("text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result"),
    *("server_tool_use", "input_text", "output_text", "summary_text", "refusal", "image_url"),
}
#: Fields that the parsers of SDKs add. The server did not send them and does not accept them.
_ADDED_BY_SDKS: dict[str, Any] = {
    "parsed": True,
    "parsed_arguments": True,
    "tool_calls": {"__all__": {"function": {"parsed_arguments"}}},
    "content": {"__all__": {"parsed", "parsed_output"}},
}
#: No call uses more: a larger number is not a count. Sums of three fit into every format.
_MOST_TOKENS = 2**48
_STREAM_METHODS = ("__next__", "__anext__", "__aiter__", "__enter__", "__aenter__")

#: A value with fields.
Fields: TypeAlias = Mapping[str, Any] | BaseModel


class _Unusable(Exception):
    def __init__(self, reason: str, advice: str = _RETURN_THE_MESSAGE) -> None:
        super().__init__(reason, advice)
        self.reason, self.advice = reason, advice


def recorded_reply(
    result: Any, at: int, step: str, redact: Callable[[Message], Message]
) -> tuple[dict[str, Any], list[Message]]:
    """Return what to record for a reply that is appended at this place of the conversation.

    The messages are returned as well, so that they are not parsed again.

    Raises:
        NotAMessage: it contains no message. The error says what it is and what to return instead.
    """
    try:
        received = list(_messages(result))
    except _Unusable as error:
        facts = {"step": step, "function": step.removeprefix("llm:"), "path": "result"}
        raise NotAMessage(**facts, reason=error.reason, advice=error.advice) from None
    messages = [redact(message) for message in received]
    # A response of the Responses API is a list, even if it has a single item.
    many = _is_array(result) or _is_response(_fields(result))
    # Not copied: nothing changes a message, nor the value of a step.
    recorded = {"at": at, "messages": [message.json_object for message in messages]}
    return {**recorded, **({"many": True} if many else {})}, messages


def _messages(result: Any) -> Iterator[Message]:
    if not _is_array(result):
        yield from _messages_of(result)
        return
    for n, one in enumerate(result):
        try:
            yield from _messages_of(one)
        except _Unusable as error:
            raise _Unusable(f"a list whose item {n} is {error.reason}", error.advice) from None


def _messages_of(value: Any) -> Iterator[Message]:
    own = _fields(value)
    if own is None:
        raise _no_fields(value)
    if _field(own, "role") is not None:
        yield _message(own)
    elif _is_array(choices := _field(own, "choices")):
        yield from _messages_of(_first_choice(choices))
    elif _fields(message := _field(own, "message")) is not None:
        yield from _messages_of(message)
    elif _is_response(own):
        for item in _finished_output(own):
            yield from _messages_of(item)
    else:
        yield _item(own)


def _message(own: Fields) -> Message:
    role = _field(own, "role")
    if role not in ROLES:
        raise _Unusable(
            f"a message with the role {role!r:.60}", f"The known roles are {', '.join(ROLES)}."
        )
    return _as_received(own, only={"role", "content"} if _is_anthropic(own) else None)


def _first_choice(choices: Any) -> Any:
    """Return the message of a completion's first choice. The others are alternatives."""
    if not choices:
        raise _Unusable("a completion without choices", _RAISE_INSTEAD)
    first = _fields(choices[0])
    if first is not None and _field(first, "delta") is not None:
        raise _Unusable("a chunk of a stream", _READ_THE_STREAM)
    message = None if first is None else _field(first, "message")
    if message is None:
        raise _Unusable("a completion whose first choice has no message", _RAISE_INSTEAD)
    return message


def _finished_output(response: Fields) -> Any:
    status, items = _field(response, "status"), _field(response, "output")
    if status not in ("completed", "incomplete", None):
        raise _Unusable(f"a response with the status {status!r:.60}", _RAISE_INSTEAD)
    if not items:
        raise _Unusable("a response without output", _RAISE_INSTEAD)
    return items


def _item(own: Fields) -> Message:
    """Return an item of the Responses API. Unknown types are accepted: new ones appear."""
    kind = _field(own, "type")
    if kind == "error":
        raise _Unusable("a provider's error", _RAISE_INSTEAD)
    if isinstance(kind, str) and kind in _CONTENT_PARTS:
        raise _Unusable(f"a part of a message's content (type {kind!r})", _RETURN_THE_WHOLE)
    if not isinstance(kind, str) or kind == "message":
        raise _Unusable(f"{kind_of(own)} without a role")
    return _as_received(own)


def _as_received(own: Fields, only: set[str] | None = None) -> Message:
    try:
        if isinstance(own, BaseModel):
            # Objects of SDKs have many fields that the server did not send.
            own = own.model_dump(
                mode="json",
                by_alias=True,
                exclude_unset=True,
                include=only,
                exclude=_ADDED_BY_SDKS,
                warnings=False,
            )
        return Message.of({name: own[name] for name in own if only is None or name in only})
    except NotJson as error:
        raise _Unusable(
            f"a message that JSON cannot represent: {error.path} {error.reason}", "Convert it first."
        ) from None
    except PydanticSerializationError as error:
        raise _Unusable(f"a message that JSON cannot represent: {error}", "Convert it first.") from None


def _no_fields(value: Any) -> _Unusable:
    if any(hasattr(type(value), name) for name in _STREAM_METHODS):
        return _Unusable(f"a stream ({kind_of(value)})", _READ_THE_STREAM)
    return _Unusable("None" if value is None else kind_of(value))


def _fields(value: Any) -> Fields | None:
    """Return the value, or the dict that it converts to; ``None`` if it has no fields."""
    if isinstance(value, Message):
        return value.json_object
    if not isinstance(value, Mapping | BaseModel) and hasattr(type(value), "to_dict"):
        value = value.to_dict()
    return value if isinstance(value, Mapping | BaseModel) else None


def _field(own: Fields, name: str) -> Any:
    return own.get(name) if isinstance(own, Mapping) else getattr(own, name, None)


def _is_array(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_response(own: Fields | None) -> bool:
    """True for a response of the Responses API. Some items have an output, too, and a type."""
    if own is None or not _is_array(_field(own, "output")):
        return False
    return all(_field(own, name) is None for name in ("role", "choices", "message", "type"))


def _is_anthropic(own: Fields) -> bool:
    """True for a whole Anthropic message. A message of the Responses API has the same type."""
    names = own if isinstance(own, Mapping) else {*type(own).model_fields, *(own.model_extra or ())}
    return _field(own, "type") == "message" and ("stop_reason" in names or "usage" in names)


def usage_of(result: Any) -> Usage | None:
    """Return the usage in a completion, or the sum for a list; ``None`` if it contains none.

    Invalid counts are ignored: they must not fail a call that is paid for.
    """
    if _is_array(result):
        return functools.reduce(_added, map(usage_of, result), None)
    own = _fields(result)
    usage = None if own is None else _fields(_field(own, "usage"))
    if own is None or usage is None:
        return None
    if _count(usage, "prompt_tokens") is not None:
        counts = _chat_counts(usage)
    elif _count(usage, "input_tokens") is not None:
        counts = _input_output_counts(usage)
    else:
        return None
    model = _field(own, "model")
    return Usage.of(model if isinstance(model, str) else None, **counts)


def _added(total: Usage | None, more: Usage | None) -> Usage | None:
    return more if total is None else total if more is None else total + more


def _chat_counts(usage: Fields) -> dict[str, int]:
    return {
        "input_tokens": _count(usage, "prompt_tokens") or 0,
        "output_tokens": _count(usage, "completion_tokens") or 0,
        "cached_tokens": _count(_field(usage, "prompt_tokens_details"), "cached_tokens") or 0,
    }


def _input_output_counts(usage: Fields) -> dict[str, int]:
    """Return the counts of the Responses API, or of Anthropic, which counts its cache separately."""
    written = _count(usage, "cache_creation_input_tokens") or 0
    read = _count(usage, "cache_read_input_tokens") or 0
    cached = _count(_field(usage, "input_tokens_details"), "cached_tokens") or 0
    return {
        "input_tokens": (_count(usage, "input_tokens") or 0) + written + read,
        "output_tokens": _count(usage, "output_tokens") or 0,
        "cached_tokens": read or cached,
    }


def _count(value: Any, name: str) -> int | None:
    own = _fields(value)
    count = None if own is None else _field(own, name)
    return count if type(count) is int and 0 <= count <= _MOST_TOKENS else None


class Reply:
    """A recorded reply of a model. ``messages`` are its messages, if they are known already."""

    def __init__(self, recorded: dict[str, Any], messages: list[Message] | None = None) -> None:
        self._at: int = recorded["at"]
        self._many: bool = recorded.get("many", False)
        self.messages = messages or [Message.of(message) for message in recorded["messages"]]

    @property
    def value(self) -> Message | list[Message]:
        """Return what the body gets."""
        return list(self.messages) if self._many else self.messages[0]

    def append_to(self, conversation: Conversation) -> None:
        """Append the messages, unless they are already in their place."""
        there = conversation.messages[self._at : self._at + len(self.messages)]
        if there != self.messages:
            for message in self.messages:
                conversation.take(message)
