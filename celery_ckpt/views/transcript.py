"""Messages as text: the speaker and what is said, for the message formats of all known providers.

Messages are stored as the provider sent them (see ``messages``). This module turns them into text for a
terminal or a page. It shows unknown parts as JSON, and names images and sounds without showing them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_ckpt.json_values import decode, encode
from celery_ckpt.messages import Message, is_result, parts_of

_TEXTS = {"text", "input_text", "output_text", "summary_text", "reasoning_text"}
_MEDIA = {"image", "image_url", "input_image", "input_audio", "audio", "document", "file", "input_file"}

#: The parts of pydantic-ai's messages that are spoken text.
_SPOKEN_PARTS = {"text", "user-prompt", "system-prompt", "retry-prompt", "retry-feedback"}


class Kind(StrEnum):
    """The kind of a piece of a message."""

    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    RESULT = "result"
    OTHER = "other"


@dataclass(frozen=True)
class Piece:
    """A part of a message, as text."""

    kind: Kind
    text: str


def speaker(message: Message) -> str:
    """Return the speaker: the role, or what the type of the item implies."""
    kind = message.json_object.get("type")
    if message.role or not isinstance(kind, str):
        return message.role or "unknown"
    if kind.endswith("_output"):
        return "tool"
    return "assistant" if kind == "reasoning" or kind.endswith("_call") else kind or "unknown"


def pieces(message: Message) -> list[Piece]:
    """Return the parts of a message. A message of an unknown format is one part, its JSON."""
    root = message.json_object
    parts = parts_of(root)
    if parts is not None:
        found = [piece for part in parts for piece in _part(part)]
        return found or [Piece(Kind.OTHER, _json(root))]
    found = [*_content(message), *_calls(message), *_items(root)]
    refusal = root.get("refusal")
    if isinstance(refusal, str):
        found.append(Piece(Kind.TEXT, f"refused: {refusal}"))
    return found or [Piece(Kind.OTHER, _json(root))]


def _content(message: Message) -> Iterator[Piece]:
    content = message.json_object.get("content")
    if message.role in ("tool", "function"):
        yield Piece(Kind.RESULT, _flat(content))
    elif isinstance(content, str):
        yield Piece(Kind.TEXT, content)
    elif isinstance(content, list):
        for block in content:
            yield _block(block)


def _calls(message: Message) -> Iterator[Piece]:
    root = message.json_object
    for call in [] if isinstance(root.get("content"), list) else message.tool_calls:
        yield Piece(Kind.CALL, _call(call.name, call.input))
    legacy = root.get("function_call")
    if isinstance(legacy, dict):
        yield Piece(Kind.CALL, _call(legacy.get("name"), legacy.get("arguments")))
    if isinstance(root.get("content"), list) and isinstance(root.get("tool_calls"), list):
        # Anthropic's calls are blocks of the content, shown above. These are OpenAI's.
        own = Message.decoded({"tool_calls": root["tool_calls"]})
        yield from (Piece(Kind.CALL, _call(call.name, call.input)) for call in own.tool_calls)


def _items(root: dict[str, Any]) -> Iterator[Piece]:
    """Yield the parts of an item of OpenAI's Responses API that is not a message."""
    kind = root.get("type")
    if not isinstance(kind, str):
        return
    if kind == "reasoning":
        yield Piece(Kind.THINKING, _flat(root.get("summary")) or "(not shown by the provider)")
    elif kind.endswith("_output"):
        yield Piece(Kind.RESULT, _flat(root.get("output")))
    elif kind.endswith("_call") and "call_id" not in root:
        name = root.get("name", kind.removesuffix("_call"))
        yield Piece(Kind.CALL, _call(name, root.get("arguments", root.get("action"))))


def _block(block: Any) -> Piece:
    """Return a content block of Anthropic or OpenAI as a piece."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        return Piece(Kind.TEXT, block) if isinstance(block, str) else Piece(Kind.OTHER, _json(block))
    if kind in _TEXTS:
        return Piece(Kind.TEXT, str(block.get("text") or ""))
    if kind == "refusal":
        return Piece(Kind.TEXT, f"refused: {block.get('refusal')}")
    if kind.endswith("thinking"):
        return Piece(Kind.THINKING, str(block.get("thinking") or "(redacted)"))
    if kind.endswith("tool_use"):
        return Piece(Kind.CALL, _call(block.get("name"), block.get("input")))
    if kind.endswith("tool_result"):
        failed = "failed: " if block.get("is_error") else ""
        return Piece(Kind.RESULT, failed + _flat(block.get("content")))
    if kind in _MEDIA:
        return Piece(Kind.OTHER, f"[{kind}, {len(_json(block)):,} bytes]")
    return Piece(Kind.OTHER, _json(block))


def _part(part: dict[str, Any]) -> Iterator[Piece]:
    """Yield the pieces of a part of one of pydantic-ai's messages."""
    kind, content = part.get("part_kind"), part.get("content")
    if is_result(part) or kind == "builtin-tool-return":
        succeeded = kind != "retry-prompt" and part.get("outcome") in (None, "success")
        yield Piece(Kind.RESULT, ("" if succeeded else "failed: ") + _said(content))
    elif kind in ("tool-call", "builtin-tool-call"):
        yield Piece(Kind.CALL, _call(part.get("tool_name"), part.get("args")))
    elif kind == "thinking":
        yield Piece(Kind.THINKING, str(content or "(redacted)"))
    elif kind == "user-prompt" and isinstance(content, list):
        yield from map(_given, content)
    elif kind in _SPOKEN_PARTS:
        yield Piece(Kind.TEXT, _said(content))
    elif kind == "file":
        yield Piece(Kind.OTHER, f"[{kind}, {len(_json(part)):,} bytes]")
    else:
        yield Piece(Kind.OTHER, _json(part))


def _given(item: Any) -> Piece:
    """Return something that a user gives to pydantic-ai: text, or media."""
    if isinstance(item, str):
        return Piece(Kind.TEXT, item)
    if isinstance(item, dict) and isinstance(item.get("content"), str):
        return Piece(Kind.TEXT, item["content"])
    kind = item.get("kind") if isinstance(item, dict) else None
    if isinstance(kind, str):
        return Piece(Kind.OTHER, f"[{kind}, {len(_json(item)):,} bytes]")
    return Piece(Kind.OTHER, _json(item))


def _said(content: Any) -> str:
    return content if isinstance(content, str) else "" if content is None else _json(content)


def _flat(content: Any) -> str:
    """Return a result, or a list of blocks, as one text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_block(block).text for block in content)
    return _json(content)


def _call(name: Any, given: Any) -> str:
    """Return a call as code: ``weather(city="Oslo")``."""
    value = given
    if isinstance(given, str):
        try:
            value = decode(given or "{}")
        except ValueError:
            value = given
    if isinstance(value, dict):
        inside = ", ".join(f"{key}={_json(each)}" for key, each in value.items())
    else:
        inside = "" if given is None else str(given) if isinstance(given, str) else _json(given)
    return f"{name or 'unknown'}({inside})"


def _json(value: Any) -> str:
    return encode(value).decode()
