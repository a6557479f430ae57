"""A run as it is kept in Redis: what scripts change in front, the rest as JSON behind it.

number usage status delivered attempts stalled progress delivery {"task": ..., "envelope": ...}

Texts are percent-encoded; an empty one is ``-``, so that one that is ``-`` is ``%2D``. The usage is
``model=input,output,cached,cost;...``, without a cost if that is not known.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from celery_ckpt.records import RunRecord
from celery_ckpt.stores.encoding import damaged, fields_of, refuse_too_large
from celery_ckpt.usage import Usage

#: The fields that stand before the JSON, in order.
IN_FRONT = ("status", "delivered", "attempts", "stalled", "progress", "delivery")
_NOT_BEHIND = {"agent_id", "run_id", "usage", *IN_FRONT}
_NEEDS_NO_QUOTE = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch


def run_line(run: RunRecord, limit: int) -> bytes:
    """Everything after the number and the usage. Raises ``CheckpointTooLarge``."""
    front = " ".join(word(getattr(run, name)) for name in IN_FRONT).encode()
    line = front + b" " + run.model_dump_json(exclude=_NOT_BEHIND).encode()
    refuse_too_large(run, len(line), limit)
    return line


def word(fact: object) -> str:
    """A fact as it stands in front of a line: no spaces, and never empty."""
    if fact in ("", "-"):
        return "%2D" if fact else "-"
    text = str(int(fact) if isinstance(fact, bool) else fact)
    return text if _NEEDS_NO_QUOTE(text) else quote(text, safe="")


def usage_word(usage: Usage) -> str:
    """A usage as scripts read and write it."""
    return ";".join(_usage_of_model(*each) for each in usage.by_model.items()) or "-"


def _usage_of_model(model: str, own: Usage) -> str:
    cost = "" if own.cost is None else repr(own.cost)
    return f"{quote(model, safe='')}={own.input_tokens},{own.output_tokens},{own.cached_tokens},{cost}"


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


def parsed_run(agent_id: str, run_id: str, line: bytes) -> RunRecord:
    """The run that a line tells of. Raises ``StoreError`` if it is damaged, or too new."""
    what = _what(agent_id, run_id)
    try:
        _, used, *words = line.split(b" ", len(IN_FRONT) + 2)
        front: dict[str, Any] = {
            name: "" if word == b"-" else unquote(word.decode())
            for name, word in zip(IN_FRONT, words[:-1], strict=True)
        }
        front["usage"] = _parsed_usage(used.decode())
        fields = {"agent_id": agent_id, "run_id": run_id, **front, **fields_of(words[-1], what)}
        # What a decoder made is plain.
        return RunRecord.model_validate(fields, context=fields.keys())
    except (ValueError, TypeError, IndexError) as error:
        raise damaged(what, error) from error


def refuse_damaged(agent_id: str, run_id: str, line: bytes) -> NoReturn:
    """Raise ``StoreError`` for a line that a script refused as damaged, or as too new."""
    parsed_run(agent_id, run_id, line)  # which usually says what is wrong
    raise damaged(
        _what(agent_id, run_id), ValueError("the words before its JSON are not what scripts write")
    )


def _what(agent_id: str, run_id: str) -> str:
    return f"The record of run {run_id!r} of agent {agent_id!r}"
