"""The summaries that a sweep makes of the lines of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime
from operator import attrgetter

from celery_ckpt.format_version import FORMAT_VERSION, refuse_newer
from celery_ckpt.json_values import decode, from_microseconds, microseconds
from celery_ckpt.retention.report import PIN, AgentPolicy, CheckpointSummary

#: The time of a record that cannot be read: it is never old, but the first to be removed by number.
UNKNOWN = datetime.max.replace(tzinfo=UTC)
_NEVER_OLD = microseconds(UNKNOWN)
_CURRENT = b"%d" % FORMAT_VERSION
#: What nearly every line starts with, up to a date before the year 5000.
_BEGINNINGS = re.compile(
    rb"^" + _CURRENT + rb' (\d+) (\d+) (-|\d+) \S+ \S+ \{"created_at":(\d{1,17})[,}].*\n?', re.MULTILINE
).findall
_new = tuple.__new__
_HAS_PIN = b'"%s"' % PIN.encode()


def summaries(
    agent_id: str, lines: Collection[tuple[str, bytes]], policy: AgentPolicy
) -> list[CheckpointSummary]:
    """Return a summary of each line, newest first.

    Raises:
        SchemaTooNew: a newer version wrote one of them.
    """
    # A sweep reads all records of all agents, and this is most of its work in Python: one search in all
    # lines is faster than one search in each.
    text = b"\n".join([line for _, line in lines])
    is_usual = not policy.pins and _HAS_PIN not in text and text.count(b"\n") == len(lines) - 1
    beginnings = _BEGINNINGS(text) if is_usual else []
    if len(beginnings) == len(lines):
        # As a named tuple creates itself, without the call in between.
        found = [
            _new(
                CheckpointSummary,
                (name, int(seq), int(taken), None, len(line), int(base if lowest == b"-" else lowest)),
            )
            for (name, line), (seq, base, lowest, taken) in zip(lines, beginnings, strict=True)
        ]
    else:
        found = [_summary(agent_id, name, line, policy) for name, line in lines]
    found.sort(key=attrgetter("seq"), reverse=True)
    return found


def _summary(agent_id: str, checkpoint_id: str, line: bytes, policy: AgentPolicy) -> CheckpointSummary:
    """Return the summary of a checkpoint that may be pinned, or that another version wrote."""
    given, seq, taken, low = None, 0, _NEVER_OLD, 0
    try:
        version, number, base, lowest, _, _, header = line.split(b" ", 6)
        if version != _CURRENT:
            refuse_newer(int(version), f"Checkpoint {checkpoint_id} of agent {agent_id!r}")
        low = int(base if lowest == b"-" else lowest)
        fields = decode(header)
        given = fields.get("metadata", {}).get(PIN)
        seq, taken = int(number), microseconds(from_microseconds(fields["created_at"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return CheckpointSummary(
        checkpoint_id, seq, taken, policy.label_of(checkpoint_id, given), len(line), low
    )
