"""Steps and run records as bytes, and back. A record that is too large is refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from celery_ckpt.errors import CheckpointTooLarge, StoreError
from celery_ckpt.format_version import refuse_newer
from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import RunOutline, RunRecord, RunStatus, Step

_NOT_DUMPED = {"agent_id", "run_id", "usage"}
#: The fields that a record has and its outline does not.
_PAYLOAD = ("envelope", "result")


def encoded(record: Step | RunRecord, limit: int) -> bytes:
    """Return the record as JSON, without the names under which it is stored.

    Raises:
        CheckpointTooLarge: it is over the limit.
    """
    if isinstance(record, Step):
        # All its fields are plain JSON.
        own = record.__dict__
        fields = {name: own[name] for name in own if name not in _NOT_DUMPED}
    else:
        # Not to JSON: pydantic would hide an exception that interrupts a serializer, like a time limit.
        fields = record.model_dump(mode="json", exclude=_NOT_DUMPED)
    if record.usage:
        fields["usage"] = record.usage.to_json()
    if fields.get("place", 0) is None:
        del fields["place"]
    if fields.get("trace") == "":
        del fields["trace"]
    data = encode(fields)
    refuse_too_large(record, len(data), limit)
    return data


def encoded_parts(run: RunRecord, limit: int) -> tuple[bytes, bytes]:
    """Return a run in two parts: its outline, and its payload, which is the envelope and the result.

    Raises:
        CheckpointTooLarge: both together are over the limit.
    """
    fields = run.model_dump(mode="json", exclude=_NOT_DUMPED)
    payload = encode({name: fields.pop(name) for name in _PAYLOAD})
    if run.usage:
        fields["usage"] = run.usage.to_json()
    if not run.trace:
        del fields["trace"]
    outline = encode(fields)
    refuse_too_large(run, len(outline) + len(payload), limit)
    return outline, payload


_FINAL = [f'"status":"{status}"'.encode() for status in RunStatus if status.is_final]


def refuse_too_large(record: Step | RunRecord, size: int, limit: int) -> None:
    """Raise ``CheckpointTooLarge`` if the size of a record is over the limit."""
    if size > limit:
        what = f"Step {record.key!r}" if isinstance(record, Step) else f"Run {record.run_id!r}"
        raise CheckpointTooLarge(
            what=what,
            agent_id=record.agent_id,
            size=size,
            limit=limit,
            part="its value" if isinstance(record, Step) else "its envelope or result",
            part_size=size,
        )


def is_same(one: Step | RunRecord, other: Step | RunRecord) -> bool:
    """True if two records are the same JSON. Unlike in Python, 0 is not False; keys have no order."""
    if one != other:
        return False
    first, second = (json.dumps(each.model_dump(mode="json"), sort_keys=True) for each in (one, other))
    return first == second


def decoded_step(agent_id: str, run_id: str, data: bytes) -> Step:
    """Return the step that ``encoded`` wrote. Raises ``StoreError`` if it is damaged or too new."""
    what = f"A step of run {run_id!r} of agent {agent_id!r}"
    try:
        return Step(agent_id=agent_id, run_id=run_id, **fields_of(data, what))
    except (ValueError, TypeError) as error:
        raise damaged(what, error) from error


def decoded_run(agent_id: str, run_id: str, data: bytes, payload: bytes = b"{}") -> RunRecord:
    """Return the run that ``encoded`` or ``encoded_parts`` wrote.

    Raises:
        StoreError: it is damaged or too new.
    """
    what = f"The record of run {run_id!r} of agent {agent_id!r}"
    try:
        fields = fields_of(data, what) | _object(payload)
        return RunRecord(agent_id=agent_id, run_id=run_id, **fields)
    except (ValueError, TypeError) as error:
        raise damaged(what, error) from error


def decoded_outline(agent_id: str, run_id: str, data: bytes) -> RunOutline:
    """Return the outline that ``encoded_parts`` wrote. Raises what ``decoded_run`` does."""
    what = f"The record of run {run_id!r} of agent {agent_id!r}"
    try:
        return RunOutline(agent_id=agent_id, run_id=run_id, **fields_of(data, what))
    except (ValueError, TypeError) as error:
        raise damaged(what, error) from error


def fields_of(data: bytes, what: str) -> dict[str, Any]:
    """Return the fields of a stored step or run. A record without a format has format 1.

    Raises:
        SchemaTooNew: a newer version wrote it.
        ValueError: it is not a JSON object.
    """
    fields = _object(data)
    refuse_newer(fields.pop("format", 1), what)
    return fields


def run_end(outline: bytes) -> datetime | None:
    """Return when a run ended, by its encoded outline, or ``None`` if that is not readable."""
    try:
        fields = _object(outline)
        return datetime.fromisoformat(fields.get("ended_at") or fields["created_at"])
    except (ValueError, KeyError, TypeError):
        return None


def says_settled(data: bytes) -> bool:
    """Return True if an encoded run says that it is settled. Does not decode it.

    Only the fields before the envelope are searched, which are short. Texts in them have no bare quote.
    """
    fields = data[: data.find(b'"envelope":')]
    return b'"delivered":true' in fields and any(status in fields for status in _FINAL)


def _object(data: bytes) -> dict[str, Any]:
    fields = decode(data)
    if not isinstance(fields, dict):
        raise ValueError("it is not an object")
    return fields


def damaged(what: str, error: Exception) -> StoreError:
    """Return the error for a step or a run that cannot be read."""
    return StoreError(reason=f"{what} is damaged: {str(error)[:200]}. Delete the agent, or that run.")
