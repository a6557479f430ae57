"""Stored data as text that is safe for a terminal, and values as text that people read.

The output of a model or a web page can contain escape sequences that clear the screen, change the title
or type commands, and characters that reverse the order of a line. They reach a terminal only as visible
escapes.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_ckpt.records import IDLE

if TYPE_CHECKING:
    from celery_ckpt.runtime.agents.agents import AgentStatus
    from celery_ckpt.usage import Usage

#: Control characters except tab and newline, direction marks, invisible line separators, and tags.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_SPACES = re.compile(r"\s+")


def visible(text: str) -> str:
    """Return the text with everything that a terminal might obey as an escape. Lines stay lines."""
    return _UNSAFE.sub(
        lambda found: found[0].encode("unicode_escape").decode(),
        text.replace("\r\n", "\n").replace("\t", "    "),
    )


def one_line(text: str, limit: int | None = None) -> str:
    """Return the text on one line, cut to ``limit`` characters."""
    line = visible(_SPACES.sub(" ", text).strip())
    return line if limit is None or len(line) <= limit else f"{line[: limit - 1]}…"


def excerpt(text: str, limit: int) -> str:
    """Return the beginning and the end of a long text, and how much is omitted between them.

    A text that is only a little longer is returned in full: the note on the omission needs a line, too.
    """
    if len(text) <= limit * 5 // 4:
        return visible(text)
    head, tail = text[: limit * 3 // 4].rstrip(), text[-limit // 4 :].lstrip()
    omitted = len(text) - len(head) - len(tail)
    return f"{visible(head)}\n… {omitted:,} characters omitted …\n{visible(tail)}"


def as_json_line(value: Any) -> str:
    """Return one line of JSON in plain ASCII, which is safe for a terminal."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def visible_json(line: bytes) -> bytes:
    """Return a line of JSON with everything that a terminal might obey as JSON's own escapes."""
    return _UNSAFE.sub(_json_escape, line.decode().removesuffix("\n")).encode() + b"\n"


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def age(at: datetime | None, now: datetime | None = None) -> str:
    """Return roughly how long ago something happened: ``12 s ago``."""
    if at is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - at) // timedelta(seconds=1)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{max(seconds, 0)} s ago"


def counted(number: int, noun: str) -> str:
    """Return a number of things: ``1 run``, ``2 runs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def bytes_of(count: float) -> str:
    """Return a number of bytes in a readable unit: ``1.2 MB``."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def status_of(agent: AgentStatus) -> str:
    """Return the status of an agent's active or latest run, or ``idle``."""
    return agent.status.value if agent.status else IDLE


def tokens_of(usage: Usage) -> str:
    """Return the number of input and output tokens, or nothing if none were reported."""
    return f"{usage.tokens:,}" if usage else ""


def cost_of(usage: Usage) -> str:
    """Return the cost, or nothing if it is unknown. ``ckpt_cost`` decides which currency it is in."""
    return "" if usage.cost is None else f"{usage.cost:.4f}"
