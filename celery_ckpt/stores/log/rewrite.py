"""A whole history written anew: the log and the records of all checkpoints of an agent.

It is what saves would have written that came one after the other, with nobody else between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.codec import FORMAT_VERSION
from celery_ckpt.stores.log.draft import Basis, Draft, Memory, Parts
from celery_ckpt.stores.log.record import Record, stamp


class Rewritten(NamedTuple):
    """A checkpoint as it is written."""

    checkpoint_id: str
    seq: int
    base: int
    #: The record after its stamp.
    rest: bytes
    #: What it adds to the log, one JSON line each.
    messages: list[bytes]

    @property
    def line(self) -> bytes:
        """The whole record."""
        return stamp(FORMAT_VERSION, self.seq, self.base, self.rest)


def rewritten(
    agent_id: str, checkpoints: Iterable[tuple[int, Checkpoint]], base: int = 0
) -> list[Rewritten]:
    """All checkpoints of an agent, with their numbers, oldest first, for a log from ``base`` on."""
    history: list[Rewritten] = []
    memory, log, latest = Memory(), dict[int, bytes](), None
    for seq, checkpoint in checkpoints:
        draft = _draft(agent_id, Parts(checkpoint), memory, log, latest)
        one = Rewritten(checkpoint.id, seq, base, draft.rest, draft.messages)
        latest = Record.parse(agent_id, checkpoint.id, one.line)
        memory.remember(checkpoint, latest.mark, latest.end, latest.ranges)
        log.update(enumerate(draft.messages, base))
        base += len(draft.messages)
        history.append(one)
    return history


def _draft(
    agent_id: str, parts: Parts, memory: Memory, log: dict[int, bytes], latest: Record | None
) -> Draft:
    draft = parts.draft_by_memory(memory, agent_id)
    if draft is None:
        return parts.draft_by_search(latest, log) if latest else parts.draft_of_all(Basis.EMPTY)
    return draft
