"""A run's result, as its record keeps it: JSON as it is, and what kombu's JSON adds to it marked."""

from __future__ import annotations

from typing import Any

from celery.backends.base import DisabledBackend
from kombu.utils import json

from celery_ckpt.errors import NotJson, RunFailed
from celery_ckpt.json_values import plain
from celery_ckpt.records import RunRecord

#: Stands for a value that is not plain JSON (a date, a UUID): its text in kombu's JSON.
_KOMBU = "ckpt:kombu-json"
#: Stands for a value that not even that can hold: another result serializer may.
_UNKNOWN = "ckpt:not-json"


def as_record(value: Any) -> Any:
    """What the record keeps of a result."""
    try:
        kept = plain(value, "result")
        return kept if not _is_marked(kept) else {_KOMBU: json.dumps(kept)}
    except NotJson:
        try:
            return {_KOMBU: json.dumps(value)}
        except (TypeError, ValueError):
            return {_UNKNOWN: type(value).__qualname__}


def refuse_what_celery_cannot_keep(task: Any, value: Any) -> None:
    """Raise now what Celery would raise once the run counts as a success.

    Raises:
        EncodeError: the serializer of results cannot write it.
    """
    is_wanted = not (task.ignore_result or task.request.ignore_result)
    if is_wanted and _is_unknown(as_record(value)) and not isinstance(task.backend, DisabledBackend):
        task.backend.encode(value)


def from_record(record: RunRecord) -> Any:
    """The result that a record keeps.

    Raises:
        RunFailed: it could not be kept.
    """
    kept = record.result
    if not _is_marked(kept):
        return kept
    if _KOMBU in kept:
        return json.loads(kept[_KOMBU])
    reason = f"it succeeded, but its result, of type {kept[_UNKNOWN]}, is not JSON and was not kept"
    raise RunFailed(agent_id=record.agent_id, run_id=record.run_id, reason=reason)


def failure_of(record: RunRecord) -> RunFailed:
    """The failure that a record keeps: of the exception, only its text."""
    reason = record.error or "for a reason that was not recorded"
    return RunFailed(agent_id=record.agent_id, run_id=record.run_id, reason=reason)


def _is_unknown(kept: Any) -> bool:
    return isinstance(kept, dict) and kept.keys() == {_UNKNOWN}


def _is_marked(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and (_KOMBU in value or _UNKNOWN in value)
