"""A run as it is kept in Redis: what scripts change in front, the rest as JSON behind it.

number status delivered attempts stalled progress delivery {"task": ..., "envelope": ...}

Texts are percent-encoded; an empty one is ``-``, so that one that is ``-`` is ``%2D``.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from celery_ckpt.records import RunRecord
from celery_ckpt.stores.limits import damaged, fields_of, refuse_too_large

#: The fields that stand before the JSON, in order.
IN_FRONT = ("status", "delivered", "attempts", "stalled", "progress", "delivery")
_NOT_BEHIND = {"agent_id", "run_id", *IN_FRONT}
_NEEDS_NO_QUOTE = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch


def run_line(run: RunRecord, limit: int) -> bytes:
    """Everything after the number. Raises ``CheckpointTooLarge``."""
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


def parsed_run(agent_id: str, run_id: str, line: bytes) -> RunRecord:
    """The run that a line tells of. Raises ``StoreError`` if it is damaged, or too new."""
    what = f"The record of run {run_id!r} of agent {agent_id!r}"
    try:
        _, *words = line.split(b" ", len(IN_FRONT) + 1)
        front: dict[str, Any] = {
            name: "" if word == b"-" else unquote(word.decode())
            for name, word in zip(IN_FRONT, words, strict=False)
        }
        fields = {"agent_id": agent_id, "run_id": run_id, **front, **fields_of(words[-1], what)}
        # What a decoder made is plain.
        return RunRecord.model_validate(fields, context=fields.keys())
    except (ValueError, TypeError, IndexError) as error:
        raise damaged(what, error) from error
