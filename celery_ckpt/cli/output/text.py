"""Texts from elsewhere, made fit for a terminal.

What a model or a web page wrote may hold escape sequences that clear the screen, change the title or
type commands, and characters that turn the order of a line around. Nothing of it reaches a terminal
but as visible escapes.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

#: Control characters but tab and newline; what changes direction; what separates lines unseen; tags.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_SPACES = re.compile(r"\s+")


def visible(text: str) -> str:
    """The text with everything that a terminal might obey written as an escape; lines stay lines."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n").replace("\t", "    "))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def one_line(text: str, limit: int | None = None) -> str:
    """The text on one line, cut to a number of characters."""
    line = visible(_SPACES.sub(" ", text).strip())
    return line if limit is None or len(line) <= limit else f"{line[: limit - 1]}…"


def excerpt(text: str, limit: int) -> str:
    """The beginning and the end of a long text, and how much was left out between.

    A text that is a little longer is shown as it is: to leave out twelve characters takes a line.
    """
    if len(text) <= limit * 5 // 4:
        return visible(text)
    head, tail = text[: limit * 3 // 4].rstrip(), text[-limit // 4 :].lstrip()
    left_out = len(text) - len(head) - len(tail)
    return f"{visible(head)}\n… {left_out:,} characters omitted …\n{visible(tail)}"


def as_json(value: Any) -> str:
    """One line of JSON in plain ASCII: no character in it can do anything to a terminal."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def visible_json(line: bytes) -> bytes:
    """A line of JSON with everything that a terminal might obey written as JSON's own escapes."""
    return _UNSAFE.sub(_json_escape, line.decode().removesuffix("\n")).encode() + b"\n"


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def age(due_at: datetime | None, now: datetime | None = None) -> str:
    """How long ago something was, roughly: ``12 s ago``."""
    if due_at is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - due_at) // timedelta(seconds=1)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{max(seconds, 0)} s ago"


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 run``, ``2 runs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def bytes_of(count: float) -> str:
    """A number of bytes in a unit that people read."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
