"""A message: any provider's JSON object, kept exactly as it was received.

Nothing is normalised or removed. ``role``, ``text``, ``tool_calls`` and ``answers`` only *read* the
shapes in use: OpenAI chat, OpenAI Responses items, Anthropic content blocks, and the parts of
pydantic-ai's requests and responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, RootModel, model_validator

from celery_ckpt.errors import NotJson
from celery_ckpt.json_values import decode, encode, kind_of, plain

_get, _set = object.__getattribute__, object.__setattr__
_TEXT_BLOCKS = ("text", "input_text", "output_text")


class ToolCall(BaseModel):
    """A tool call that the model asked for."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    id: str
    name: str
    #: As the provider sent it: a JSON text (OpenAI) or an object (Anthropic).
    input: Any = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments as keywords. Raises ``ValueError`` if they are not a JSON object."""
        value = self.input
        if isinstance(value, str):
            try:
                value = decode(value or "{}")
            except ValueError as error:
                raise ValueError(
                    f"The arguments of tool call {self.id} to {self.name!r} are not JSON: {error}"
                ) from error
        if not isinstance(value, dict):
            raise ValueError(f"The arguments of tool call {self.id} to {self.name!r} are not an object")
        return _plain_object(value)


class Message(RootModel[dict[str, Any]]):
    """A message: immutable, compared by value, equal to the JSON object it was made from."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)
    #: Beside the fields, so that it is neither compared nor copied nor written.
    __slots__ = ("_digest",)

    @model_validator(mode="before")
    @classmethod
    def _own_plain_copy(cls, value: Any) -> Any:
        return value.json_object if isinstance(value, Message) else _plain_object(value)

    @classmethod
    def of(cls, value: Message | dict[str, Any]) -> Message:
        """Return the message for a JSON object. A message is returned as it is.

        Raises:
            NotJson: JSON cannot represent it exactly; the error names the path.
        """
        return value if isinstance(value, Message) else cls.decoded(_plain_object(value))

    @classmethod
    def decoded(cls, value: dict[str, Any]) -> Message:
        """Wrap an object that a decoder returned: it is plain JSON, and nothing else refers to it."""
        # What model_construct does, without its search for aliases and defaults, which would make
        # loading a long conversation half as slow again.
        message = cls.__new__(cls)
        _set(message, "__dict__", {"root": value})
        _set(message, "__pydantic_fields_set__", {"root"})
        return message

    @classmethod
    def system(cls, content: Any, **fields: Any) -> Message:
        """Return a message with instructions to the model."""
        return cls.of({"role": "system", "content": content, **fields})

    @classmethod
    def user(cls, content: Any, **fields: Any) -> Message:
        """Return a message of the user: text, or a provider's list of content blocks."""
        return cls.of({"role": "user", "content": content, **fields})

    @classmethod
    def assistant(cls, content: Any = None, **fields: Any) -> Message:
        """Return a message of the model; ``tool_calls=[...]`` and other fields are kept as they are."""
        return cls.of({"role": "assistant", "content": content, **fields})

    @classmethod
    def tool(cls, content: Any, tool_call_id: str, **fields: Any) -> Message:
        """Return the result of a tool call, in OpenAI's chat shape."""
        return cls.of({"role": "tool", "tool_call_id": tool_call_id, "content": content, **fields})

    @property
    def json_object(self) -> dict[str, Any]:
        """Return the JSON object itself. It must not be changed."""
        own: dict[str, Any] = self.__dict__["root"]
        return own

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the JSON object, which the caller may change."""
        return _plain_object(self.json_object)

    def to_json(self) -> bytes:
        """Return the JSON object on one line. Stores keep this, and digests are computed from it."""
        return encode(self.json_object)

    @property
    def role(self) -> str | None:
        """Return the role, or ``None`` if the provider's shape has none."""
        role = self.json_object.get("role")
        if isinstance(role, str):
            return role
        parts = parts_of(self.json_object)
        return None if parts is None else _role_of_parts(self.json_object, parts)

    @property
    def text(self) -> str:
        """Return all text in the message, without thinking, tool calls or tool results."""
        content = self.json_object.get("content")
        if isinstance(content, str):
            return content
        parts = parts_of(self.json_object)
        if parts is not None:
            return "".join(text for part in parts for text in _texts_of(part, self.role))
        blocks = (b for b in _objects(content) if b.get("type") in _TEXT_BLOCKS)
        return "".join(str(block.get("text") or "") for block in blocks)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Return the calls that need a result from us, not the calls that the provider runs itself."""
        # A copy of the input: a tool may change its arguments, and the message must not change.
        return [
            ToolCall(
                id=call_id, name=name if isinstance(name, str) else "", input=plain(given, "input")
            )
            for call_id, name, given in _calls(self.json_object)
        ]

    @property
    def call_ids(self) -> list[str]:
        """Return the ids of ``tool_calls``, without copying their inputs."""
        return [call_id for call_id, _, _ in _calls(self.json_object)]

    @property
    def answers(self) -> list[str]:
        """Return the ids of the tool calls whose results are in this message."""
        root, found = self.json_object, []
        if root.get("role") == "tool":
            found.append(root.get("tool_call_id"))
        if str(root.get("type", "")).endswith("_output"):
            # A local_shell_call_output names the call by its id and has no call_id.
            found.append(root.get("call_id", root.get("id")))
        blocks = _objects(root.get("content"))
        found += [b.get("tool_use_id") for b in blocks if b.get("type") == "tool_result"]
        found += [part.get("tool_call_id") for part in parts_of(root) or () if is_result(part)]
        return [call_id for call_id in found if isinstance(call_id, str)]


def digested(message: Message, digest: Callable[[dict[str, Any]], Any]) -> Any:
    """Return ``digest`` of the JSON object. It is called once: a message never changes."""
    try:
        return _get(message, "_digest")
    except AttributeError:
        _set(message, "_digest", own := digest(message.json_object))
        return own


class _RootCopiedOut:
    """Returns ``message.root`` as a copy, so that no reader can change a stored message."""

    def __get__(self, instance: Message | None, owner: type[Message]) -> Any:
        return self if instance is None else instance.to_dict()

    def __set__(self, instance: Message, value: Any) -> None:
        # Only pydantic calls this, to fill a new message: for other code it is frozen.
        instance.__dict__["root"] = value


def _plain_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotJson(path="A message", reason=f"is of type {kind_of(value)}, not an object")
    copy: dict[str, Any] = plain(value, "message")
    return copy


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _calls(root: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the id, the name and the input of each call that needs a result from us."""
    calls = (
        *_chat_calls(root),
        *_responses_calls(root),
        *_anthropic_calls(root),
        *_pydantic_ai_calls(root),
    )
    return [call for call in calls if isinstance(call[0], str)]


def _chat_calls(root: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for call in _objects(root.get("tool_calls")):
        for kind, given in (("function", "arguments"), ("custom", "input")):
            if isinstance(body := call.get(kind), dict):
                yield call.get("id"), body.get("name"), body.get(given)


def _responses_calls(root: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    # Only calls for the client carry a call_id: web_search_call, mcp_call and the like do not.
    kind = root.get("type")
    if isinstance(kind, str) and kind.endswith("_call"):
        given = root.get("arguments", root.get("input", root.get("action")))
        yield root.get("call_id"), root.get("name", kind.removesuffix("_call")), given


def _anthropic_calls(root: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for block in _objects(root.get("content")):
        if block.get("type") == "tool_use":
            yield block.get("id"), block.get("name"), block.get("input")


# -- pydantic-ai -----------------------------------------------------------------------------------


def parts_of(root: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the parts of a message of pydantic-ai; ``None`` for a message of another shape."""
    if root.get("kind") not in ("request", "response") or not isinstance(root.get("parts"), list):
        return None
    return list(_objects(root["parts"]))


def is_result(part: dict[str, Any]) -> bool:
    """True if a part of pydantic-ai is the result of a tool call that we made."""
    # Without a tool's name, the model has to try its output again.
    is_retry = part.get("part_kind") == "retry-prompt" and part.get("tool_name") is not None
    return is_retry or part.get("part_kind") == "tool-return"


def _role_of_parts(root: dict[str, Any], parts: list[dict[str, Any]]) -> str:
    if root["kind"] == "response":
        return "assistant"
    if parts and all(part.get("part_kind") == "system-prompt" for part in parts):
        return "system"
    is_asked = any(part.get("part_kind") == "user-prompt" for part in parts)
    return "tool" if not is_asked and any(map(is_result, parts)) else "user"


def _texts_of(part: dict[str, Any], role: str | None) -> Iterator[str]:
    """Yield the text of a part if it is what the speaker says."""
    kinds = {"assistant": ("text",), "system": ("system-prompt",)}.get(role or "", ("user-prompt",))
    content = part.get("content")
    if part.get("part_kind") in kinds:
        for said in content if isinstance(content, list) else [content]:
            text = said.get("content") if isinstance(said, dict) else said
            if isinstance(text, str):
                yield text


def _pydantic_ai_calls(root: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for part in parts_of(root) or ():
        if part.get("part_kind") == "tool-call":
            given = part.get("args")
            yield part.get("tool_call_id"), part.get("tool_name"), {} if given is None else given


# Pydantic itself reads ``__dict__``. (A plain assignment is not for type checkers.)
setattr(Message, "root", _RootCopiedOut())  # noqa: B010
