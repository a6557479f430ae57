"""A run's result in its record: plain JSON as it is, and other values in kombu's JSON, marked."""

from __future__ import annotations

from typing import Any

from celery.backends.base import DisabledBackend
from kombu.utils import json

from celery_ckpt.errors import NotJson, RunFailed
from celery_ckpt.json_values import plain
from celery_ckpt.records import RunRecord

#: Marks a value that is not plain JSON (a date, a UUID); it is stored as text in kombu's JSON.
_KOMBU = "ckpt:kombu-json"
#: Marks a value that is not stored: kombu's JSON cannot hold it, another serializer may.
_UNKNOWN = "ckpt:not-json"


def as_record(value: Any) -> Any:
    """Return what the record stores for a result."""
    try:
        kept = plain(value, "result")
        return kept if not _is_marked(kept) else {_KOMBU: json.dumps(kept)}
    except NotJson:
        try:
            return {_KOMBU: json.dumps(value)}
        except (TypeError, ValueError):
            return {_UNKNOWN: type(value).__qualname__}


def refuse_what_celery_cannot_keep(task: Any, value: Any) -> None:
    """Raise now what Celery would raise after the run was recorded as a success.

    Raises:
        EncodeError: the result serializer cannot write the value.
    """
    is_wanted = not (task.ignore_result or task.request.ignore_result)
    kept = as_record(value)
    is_unknown = isinstance(kept, dict) and kept.keys() == {_UNKNOWN}
    if is_wanted and is_unknown and not isinstance(task.backend, DisabledBackend):
        task.backend.encode(value)


def from_record(record: RunRecord) -> Any:
    """Return the result that a record stores.

    Raises:
        RunFailed: the record could not store it.
    """
    kept = record.result
    if not _is_marked(kept):
        return kept
    if _KOMBU in kept:
        return json.loads(kept[_KOMBU])
    reason = f"it succeeded, but its result of type {kept[_UNKNOWN]} is not JSON and was not stored"
    raise RunFailed(agent_id=record.agent_id, run_id=record.run_id, reason=reason)


def failure_of(record: RunRecord) -> RunFailed:
    """Return the failure that a record stores: the text of the exception."""
    reason = record.error or "for a reason that was not recorded"
    return RunFailed(agent_id=record.agent_id, run_id=record.run_id, reason=reason)


def _is_marked(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and (_KOMBU in value or _UNKNOWN in value)
