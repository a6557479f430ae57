"""The lines of a log store, as far as a sweep has to know them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from celery_ckpt.codec import FORMAT_VERSION, moment, refuse_newer
from celery_ckpt.jsonvalues import decode
from celery_ckpt.maintenance import PIN, Mark, Notes

#: Of a record that cannot be read: never old, but the first to go if there are too many.
UNKNOWN = datetime.max.replace(tzinfo=UTC)
_CURRENT = b"%d" % FORMAT_VERSION


def marks(agent_id: str, lines: Iterable[tuple[str, bytes]], notes: Notes) -> list[Mark]:
    """Of each line what it takes to judge it, newest first.

    Raises:
        SchemaTooNew: a newer version wrote one of them.
    """
    found = [_mark(agent_id, name, line, notes) for name, line in lines]
    found.sort(key=lambda mark: mark.seq, reverse=True)
    return found


def _mark(agent_id: str, checkpoint_id: str, line: bytes, notes: Notes) -> Mark:
    # A sweep reads all records of a fleet, and ``Record.parse`` takes five times as long.
    given, seq, created_at, low = None, 0, UNKNOWN, 0
    try:
        version, number, base, lowest, _, _, header = line.split(b" ", 6)
        if version != _CURRENT:
            refuse_newer(int(version), f"Checkpoint {checkpoint_id} of agent {agent_id!r}")
        low = int(base if lowest == b"-" else lowest)
        fields = decode(header)
        given = fields.get("metadata", {}).get(PIN)
        seq, created_at = int(number), moment(fields["created_at"])
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return Mark(checkpoint_id, seq, created_at, notes.label_of(checkpoint_id, given), len(line), low)
