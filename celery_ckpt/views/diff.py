"""The differences between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.messages import Message

_FIELDS = ("agent_id", "run_id", "iteration", "event", "metadata", "state")
_MISSING = object()
#: If more messages lie between the common beginning and end, they are not matched one by one.
_MOST_MATCHED = 2_000


@dataclass(frozen=True)
class Change:
    """A value that differs. ``has_old`` or ``has_new`` is False if that checkpoint lacks the value."""

    path: str
    old: Any
    new: Any
    has_old: bool = True
    has_new: bool = True


@dataclass(frozen=True)
class Edit:
    """Messages of the old conversation that other messages replace in the new one."""

    #: The index of the first message in the old and in the new conversation.
    old_at: int
    new_at: int
    removed: list[Message]
    added: list[Message]


@dataclass(frozen=True)
class Difference:
    """Everything that differs between two checkpoints."""

    changes: list[Change]
    edits: list[Edit]
    #: The number of messages that both have.
    shared: int

    def __bool__(self) -> bool:
        return bool(self.changes or self.edits)


def difference(old: Checkpoint, new: Checkpoint) -> Difference:
    """Compare two checkpoints, except for their ids and times."""
    changes: list[Change] = []
    for field in _FIELDS:
        changes += _changes(field, getattr(old, field), getattr(new, field))
    before, after = old.conversation, new.conversation
    changes += _changes("max_tokens", before.max_tokens, after.max_tokens)
    edits = _edits(before.messages, after.messages)
    return Difference(changes, edits, len(before) - sum(len(edit.removed) for edit in edits))


def _changes(path: str, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _changes(f"{path}.{key}", old.get(key, _MISSING), new.get(key, _MISSING))
    elif type(old) is not type(new) or old != new:
        has_old, has_new = old is not _MISSING, new is not _MISSING
        yield Change(path, old if has_old else None, new if has_new else None, has_old, has_new)


def _edits(old: list[Message], new: list[Message]) -> list[Edit]:
    # A checkpoint nearly always has all messages of the one before it: compare both ends first.
    before, after = [m.to_json() for m in old], [m.to_json() for m in new]
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    stop_old, stop_new = len(before) - end, len(after) - end
    if max(stop_old, stop_new) - start > _MOST_MATCHED:
        return [Edit(start, start, old[start:stop_old], new[start:stop_new])]
    matcher = SequenceMatcher(None, before[start:stop_old], after[start:stop_new], autojunk=False)
    return [
        Edit(start + i, start + k, old[start + i : start + j], new[start + k : start + m])
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    ]


def _common(one: list[bytes], other: list[bytes]) -> int:
    """Return the length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
