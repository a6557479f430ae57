"""The line that a log store keeps for a checkpoint.

    1 17 34 0 0:34,+0:2 9f86d081884c7d659a2feaa0 {"created_at":...,"messages":36,"iteration":17}
    |  |  | |     |        |      the header (see checkpoint.py)
    |  |  | |     |        digest of the header and of all messages
    |  |  | |     where the messages are (see ranges.py)
    |  |  | the smallest offset among them: what the log must keep ("-": the base)
    |  |  base: the offset of the first message that this save added
    |  seq: the store's order
    format version

The first three are only known when the line is written: ``stamp`` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.format_version import refuse_newer
from celery_ckpt.json_values import decode, from_microseconds
from celery_ckpt.records import CheckpointInfo
from celery_ckpt.retention.report import PIN, AgentPolicy
from celery_ckpt.stores.log.ranges import Ranges, Span

NO_POLICY = AgentPolicy()
#: How many of the 64 characters of a digest a record keeps.
DIGEST_LENGTH = 24


def stamp(version: int, seq: int, base: int, rest: bytes) -> bytes:
    """Return the whole line, when the store knows where the messages are."""
    return b"%d %d %d %b" % (version, seq, base, rest)


def low_of(line: bytes) -> int:
    """Return the smallest offset that the log must keep for a line, or 0 if it cannot be read."""
    base, low = (line.split(b" ", 4) + [b""] * 4)[2:4]
    number = base if low == b"-" else low
    return int(number) if number.isdigit() else 0


def _number(word: bytes) -> int:
    # The error of int() would quote the text, which may be part of a conversation.
    if not word.isdigit():
        raise ValueError("expected a number")
    return int(word)


@dataclass(frozen=True)
class Record:
    """A parsed line."""

    agent_id: str
    checkpoint_id: str
    seq: int
    base: int
    low: int
    #: Where the messages are, as absolute offsets.
    ranges: Ranges
    #: The same, not merged: one span for each in the line.
    spans: list[Span]
    digest: str
    #: Base, low, ranges and digest, as in the line. They distinguish this save from all others.
    mark: str
    header_bytes: bytes
    header: dict[str, Any]

    @classmethod
    def parse(cls, agent_id: str, checkpoint_id: str, line: bytes) -> Record:
        """Parse a stored line.

        Raises:
            CheckpointDamaged: the line cannot be parsed.
            SchemaTooNew: a newer version wrote it.
        """
        try:
            version, _, rest = line.partition(b" ")
            refuse_newer(_number(version), f"Checkpoint {checkpoint_id} of agent {agent_id!r}")
            number, begin, low, ranges, digest, header = rest.split(b" ", 5)
            seq, base = _number(number), _number(begin)
            written = Ranges.parse(ranges.decode())
            fields = decode(header)
            if not isinstance(fields, dict):
                raise ValueError("its header is not an object")
            mark = b" ".join((begin, low, ranges, digest)).decode()
            return cls(
                agent_id, checkpoint_id, seq, base, low_of(line), written.at(base),
                written.placed(base), digest.decode(), mark, header, fields,
            )  # fmt: skip
        except ValueError as error:
            raise CheckpointDamaged(
                agent_id=agent_id,
                checkpoint_id=checkpoint_id,
                reason=f"its record cannot be read ({error})",
            ) from error

    @property
    def end(self) -> int:
        """Where the log ended with this save."""
        return max([self.base, *(start + count for start, count, _ in self.spans)])

    def damaged(self, reason: str) -> CheckpointDamaged:
        """Return the error for this checkpoint."""
        return CheckpointDamaged(
            agent_id=self.agent_id, checkpoint_id=self.checkpoint_id, reason=reason[:200]
        )

    def places(self, wanted: slice) -> tuple[int, int, Ranges]:
        """Return how many messages the conversation has, the first wanted one, and where they are.

        Raises:
            CheckpointDamaged: the header does not say how many there are.
        """
        total = self.header.get("messages")
        if type(total) is not int or not 0 <= total <= self.ranges.count:
            raise self.damaged("its header does not fit its messages")
        start, stop, _ = wanted.indices(total)
        return total, start, self.ranges.cut(start, max(start, stop))

    def lines(self, ranges: Ranges, messages: Mapping[int, bytes]) -> list[bytes]:
        """Return the messages at these places. Raises ``CheckpointDamaged`` if one is missing."""
        if Ranges.union(ranges.spans).count > len(messages):
            raise self.damaged("some of its messages are missing")
        return [messages[at] for at in ranges]

    def info(self, policy: AgentPolicy = NO_POLICY) -> CheckpointInfo:
        """Return the outline of the checkpoint, with its pin by the agent's policy."""
        wanted = ("iteration", "event", "run_id", "metadata")
        try:
            fields = {name: self.header[name] for name in wanted if name in self.header}
            fields["created_at"] = from_microseconds(self.header["created_at"])
            fields["messages"] = self.header["messages"]
            pin = policy.label_of(self.checkpoint_id, fields.get("metadata", {}).get(PIN))
            return CheckpointInfo(id=self.checkpoint_id, seq=self.seq, pin=pin, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.damaged(f"its header is incomplete ({error})") from error
