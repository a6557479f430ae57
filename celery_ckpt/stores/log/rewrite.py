"""A whole history, written again: the log and the records of all checkpoints of an agent.

It is what the same saves would have written, one after the other, without any other writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.format_version import FORMAT_VERSION
from celery_ckpt.stores.log.draft import Basis, Memory, Parts
from celery_ckpt.stores.log.record import Record, stamp


class Rewritten(NamedTuple):
    """A checkpoint, ready to be written."""

    checkpoint_id: str
    seq: int
    base: int
    #: The record after its stamp.
    rest: bytes
    #: The messages that it adds to the log, one JSON line each.
    messages: list[bytes]

    @property
    def line(self) -> bytes:
        """The whole record."""
        return stamp(FORMAT_VERSION, self.seq, self.base, self.rest)


def rewritten(
    agent_id: str, checkpoints: Iterable[tuple[int, Checkpoint]], base: int = 0
) -> list[Rewritten]:
    """Return what to write for checkpoints with their sequence numbers, oldest first.

    The log starts at offset ``base``.
    """
    history: list[Rewritten] = []
    memory, log = Memory(), dict[int, bytes]()
    latest: Record | None = None
    for seq, checkpoint in checkpoints:
        parts = Parts(checkpoint)
        draft = parts.draft_by_memory(memory, agent_id)
        if draft is None and latest is not None:
            draft = parts.draft_by_search(latest, log)
        if draft is None:
            draft = parts.draft_of_all(Basis.EMPTY)
        one = Rewritten(checkpoint.id, seq, base, draft.rest, draft.messages)
        latest = Record.parse(agent_id, checkpoint.id, one.line)
        memory.remember(checkpoint, latest.mark, latest.end, latest.ranges)
        log.update(enumerate(draft.messages, base))
        base += len(draft.messages)
        history.append(one)
    return history
