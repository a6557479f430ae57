"""The line that Redis keeps for a run: what scripts change comes first, the rest follows as JSON.

    number usage status delivered attempts stalled progress delivery trace passed_over expires_at
    {"task": ..., "created_at": ..., ..., "error": ..., "envelope": ..., "result": ...}

The JSON ends with the envelope and the result, so that a script can cut them off.

The time ``expires_at`` is in microseconds since 1970, or ``-``. Texts are percent-encoded. An empty
text is ``-``, and the text ``-`` is ``%2D``. The usage is ``model=input,output,cached,cost;...``; the
cost is empty if it is not known.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, unquote

from celery_ckpt.json_values import from_microseconds, microseconds
from celery_ckpt.records import RunOutline, RunRecord
from celery_ckpt.stores.encoding import damaged, fields_of, refuse_too_large
from celery_ckpt.stores.resources import IN_LINE
from celery_ckpt.usage import Usage

R = TypeVar("R", bound=RunOutline)
#: The fields between the usage and the JSON, in order.
IN_FRONT = (
    "status",
    "delivered",
    "attempts",
    "stalled",
    "progress",
    "delivery",
    "trace",
    "passed_over",
    "expires_at",
)
_NOT_IN_JSON = {"agent_id", "run_id", "usage", *IN_FRONT}
_NEEDS_NO_QUOTE = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch


def run_line(run: RunRecord, limit: int) -> bytes:
    """Return the line without number and usage. Raises ``CheckpointTooLarge``."""
    front = " ".join(word(getattr(run, name)) for name in IN_FRONT).encode()
    line = front + b" " + run.model_dump_json(exclude=_NOT_IN_JSON).encode()
    refuse_too_large(run, len(line), limit)
    return line


def word(value: object) -> str:
    """Return a value as a word of the line: it has no spaces and is never empty."""
    if value in ("", "-"):
        return "%2D" if value else "-"
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return str(microseconds(value))
    text = str(int(value) if isinstance(value, bool) else value)
    return text if _NEEDS_NO_QUOTE(text) else quote(text, safe="")


def text_of(word: bytes) -> str:
    """Return the text that ``word`` was given."""
    return "" if word == b"-" else unquote(word.decode())


def usage_word(usage: Usage) -> str:
    """Return a usage as a word of the line."""
    models = [
        f"{quote(model, safe='')}={own.input_tokens},{own.output_tokens},{own.cached_tokens},"
        + ("" if own.cost is None else repr(own.cost))
        for model, own in usage.by_model.items()
    ]
    return ";".join(models) or "-"


def _parsed_usage(word: str) -> Usage:
    total = Usage()
    for each in word.split(";") if word != "-" else ():
        model, _, counts = each.partition("=")
        given, output, cached, cost = counts.split(",")
        total += Usage.of(
            unquote(model),
            input_tokens=int(given),
            output_tokens=int(output),
            cached_tokens=int(cached),
            cost=float(cost) if cost else None,
        )
    return total


def place_of(run: RunRecord) -> str:
    """Return the place of a run that is added (see ``lua/shared.lua``); empty: its number."""
    if run.passed_over or run.status.is_final:
        return "+inf"
    if run.eta is None or run.attempts:
        return ""
    return str(max(IN_LINE, microseconds(run.eta) // 1000))


def number_of(stored: bytes) -> int:
    """Return the number that a stored step or run starts with. It gives their order."""
    number = stored.partition(b" ")[0]
    return int(number[:20]) if number.isdigit() else 0


def parsed_run(agent_id: str, run_id: str, line: bytes) -> RunRecord:
    """Return the run of a line. Raises ``StoreError`` if the line is damaged or too new."""
    return _parsed(RunRecord, agent_id, run_id, line)


def parsed_outline(agent_id: str, run_id: str, line: bytes) -> RunOutline:
    """Return the outline of a run. The line may lack envelope and result. See ``parsed_run``."""
    return _parsed(RunOutline, agent_id, run_id, line)


def _parsed(kind: type[R], agent_id: str, run_id: str, line: bytes) -> R:
    what = _what(agent_id, run_id)
    try:
        _, used, *words = line.split(b" ", len(IN_FRONT) + 2)
        front: dict[str, Any] = {
            name: text_of(word) for name, word in zip(IN_FRONT, words[:-1], strict=True)
        }
        front["usage"] = _parsed_usage(used.decode())
        expires_at = front["expires_at"]
        front["expires_at"] = from_microseconds(int(expires_at)) if expires_at else None
        fields = {"agent_id": agent_id, "run_id": run_id, **front, **fields_of(words[-1], what)}
        # The context says which fields hold plain JSON values already.
        return kind.model_validate(fields, context=fields.keys())
    except (ValueError, TypeError, IndexError) as error:
        raise damaged(what, error) from error


def refuse_damaged(agent_id: str, run_id: str, line: bytes) -> NoReturn:
    """Raise ``StoreError`` for a line that a script refused as damaged or too new."""
    parsed_run(agent_id, run_id, line)  # usually raises the error that says what is wrong
    why = ValueError("the words before its JSON are not what scripts write")
    raise damaged(_what(agent_id, run_id), why)


def _what(agent_id: str, run_id: str) -> str:
    return f"The record of run {run_id!r} of agent {agent_id!r}"
