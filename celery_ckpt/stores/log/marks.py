"""The lines of a log store, as far as a sweep has to know them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.maintenance import Mark, Notes
from celery_ckpt.stores.log.record import Record, low_of

#: Of a record that cannot be read: never old, but the first to go if there are too many.
UNKNOWN = datetime.max.replace(tzinfo=UTC)


def marks(agent_id: str, lines: Iterable[tuple[str, bytes]], notes: Notes) -> list[Mark]:
    """Of each line what it takes to judge it, newest first."""
    found = (_mark(agent_id, name, line, notes) for name, line in lines)
    return sorted(found, key=lambda mark: mark.seq, reverse=True)


def _mark(agent_id: str, checkpoint_id: str, line: bytes, notes: Notes) -> Mark:
    try:
        info = Record.parse(agent_id, checkpoint_id, line).info(notes)
    except CheckpointDamaged:
        return Mark(checkpoint_id, 0, UNKNOWN, size=len(line))
    return Mark(info.id, info.seq, info.created_at, info.pin, len(line), low_of(line))
