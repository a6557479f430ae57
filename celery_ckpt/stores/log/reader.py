"""How checkpoints are rebuilt from their records and messages, and checked against their digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from celery_ckpt.checkpoint import Checkpoint, assemble
from celery_ckpt.conversation import Spine
from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.json_values import decode
from celery_ckpt.messages import Message
from celery_ckpt.records import MessagePage
from celery_ckpt.stores.encryption_tag import refuse_encrypted_checkpoint
from celery_ckpt.stores.log.ranges import Ranges
from celery_ckpt.stores.log.record import DIGEST_LENGTH, Record

S = TypeVar("S")


class Reading:
    """Rebuilds checkpoints of one agent, oldest first, and checks them."""

    def __init__(self, *, refuses_encrypted: bool = False) -> None:
        self._shared = SharedSpine()
        self._refuses_encrypted = refuses_encrypted

    def checkpoint(self, record: Record, messages: Mapping[int, bytes]) -> Checkpoint:
        """Return one checkpoint.

        Raises:
            CheckpointDamaged: a message is missing, or something is not what was saved.
            EncryptionKeyMissing: it is encrypted, and this reader refuses that.
        """
        try:
            spine = self._shared.at(record.ranges, messages)
            sha256, _ = spine.digest(record.ranges.count, record.header_bytes)
            if sha256[:DIGEST_LENGTH] != record.digest:
                raise ValueError("its content is not what was saved")
            checkpoint = assemble(
                Checkpoint, record.agent_id, record.checkpoint_id, record.header, spine
            )
        except (ValueError, KeyError, TypeError) as error:
            raise record.damaged(str(error)) from error
        if self._refuses_encrypted:
            refuse_encrypted_checkpoint(checkpoint)
        return checkpoint


class SharedSpine:
    """The messages of one checkpoint after another.

    Checkpoints that continue each other share a spine, so that the memory of a long history is that of
    its messages, not of its checkpoints.
    """

    def __init__(self) -> None:
        self._ranges = Ranges()
        self._spine = Spine()

    def at(self, ranges: Ranges, messages: Mapping[int, bytes]) -> Spine:
        """Return the spine with exactly the messages at these places.

        Raises:
            ValueError: a message is missing, or is not a JSON object.
        """
        known = self._ranges.count
        if ranges.cut(0, known) != self._ranges:
            self._ranges, self._spine, known = Ranges(), Spine(), 0
        added = ranges.cut(known, ranges.count)
        if Ranges.union(added.spans).count > len(messages):
            # A damaged record may name billions of messages: do not look for any of them.
            raise ValueError(f"it needs {ranges.count} messages, and some are missing")
        try:
            lines = [messages[at] for at in added]
        except KeyError as error:
            raise ValueError(f"its message at offset {error} is missing") from None
        self._spine.extend_with_stored(lines, _decoded(lines))
        self._ranges = ranges
        return self._spine


def all_readable(
    newest_first: Sequence[S], read: Callable[[S], Checkpoint], damage: CheckpointDamaged | None = None
) -> list[Checkpoint]:
    """Read all of these, newest first.

    Raises:
        CheckpointDamaged: one cannot be read, or ``damage`` was given; ``readable`` has the others.
    """
    readable = []
    # Oldest first: damage in a later checkpoint does not affect those before it.
    for one in reversed(newest_first):
        try:
            readable.append(read(one))
        except CheckpointDamaged as error:
            damage = error
    readable.reverse()
    if damage is not None:
        damage.readable = readable
        raise damage
    return readable


def page_of(
    agent_id: str, checkpoint_id: str, total: int, start: int, lines: list[bytes]
) -> MessagePage:
    """Return a page of messages. Raises ``CheckpointDamaged`` if one is not a message."""
    try:
        return MessagePage(agent_id, checkpoint_id, total, start, _decoded(lines))
    except ValueError as error:
        names = {"agent_id": agent_id, "checkpoint_id": checkpoint_id}
        raise CheckpointDamaged(**names, reason=str(error)[:200]) from error


def _decoded(lines: list[bytes]) -> list[Message]:
    objects = decode(b"[%b]" % b",".join(lines))
    if len(objects) != len(lines) or not set(map(type, objects)) <= {dict}:
        raise ValueError("one of its messages is not a JSON object")
    return [Message.decoded(item) for item in objects]
