"""What all stores with a log share: how checkpoints are saved, read and pruned.

A log store brings the primitives below, each atomic in itself; everything that can be decided without
touching the disk or the network is decided here, once.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.codec import is_same
from celery_ckpt.errors import AlreadyExists, CheckpointDamaged
from celery_ckpt.names import checked_name, id_prefix
from celery_ckpt.records import CheckpointInfo, Lease, RunRecord
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, CheckpointStore
from celery_ckpt.stores.log.draft import Basis, Draft, Memory, Parts
from celery_ckpt.stores.log.ranges import Ranges, Span
from celery_ckpt.stores.log.reader import Reading, all_readable
from celery_ckpt.stores.log.record import Record

#: After so many lost races for a basis a save brings all its messages along.
_MAX_RACES = 3


@dataclass(frozen=True)
class Stored:
    """A checkpoint as it was read: who, its line, and its messages by offset."""

    agent_id: str
    checkpoint_id: str
    line: bytes
    messages: Mapping[int, bytes]

    def record(self) -> Record:
        """Its line, taken apart."""
        return Record.parse(self.agent_id, self.checkpoint_id, self.line)


class BasisGone(Exception):
    """The save was refused, because what it rests on is not there. Nothing was written."""


class SavedBefore(Exception):
    """The id is stored already: ``digest`` says with which content. Nothing was written."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest


class LogStore(CheckpointStore):
    """A store with an append-only log of messages for each agent."""

    def __init__(self, *, max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES) -> None:
        self.max_checkpoint_bytes = max_checkpoint_bytes
        self._memory = Memory()

    # -- what a log store brings ---------------------------------------------------------------------

    @abstractmethod
    def _append(
        self,
        agent_id: str,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
    ) -> int:
        """Write a draft, and a run's record if given, in one atomic step; returns the draft's base.

        Raises:
            SavedBefore, LeaseLost, LeaseHeld, BasisGone, RunNotFound: checked in this order.
        """

    @abstractmethod
    def _read(self, agent_id: str, checkpoint_id: str | None) -> Stored | None:
        """One checkpoint of an agent, or its latest, in one atomic step."""

    @abstractmethod
    def _read_many(
        self, agent_id: str, limit: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], Mapping[int, bytes]]:
        """The newest checkpoints, newest first, as ids and lines, and the messages they need."""

    @abstractmethod
    def _lines(self, agent_id: str) -> Iterable[tuple[str, bytes]]:
        """The ids and lines of all checkpoints of the agent, in any order."""

    @abstractmethod
    def _agents_that_may_have(self, checkpoint_id: str) -> Iterable[str]:
        """The agents among whose checkpoints an id can be."""

    @abstractmethod
    def _register(self, checkpoint_id: str, agent_id: str) -> None:
        """Note whose an id is that does not name its agent, before it is saved."""

    # -- what follows from it ------------------------------------------------------------------------

    def save(
        self, checkpoint: Checkpoint, lease: Lease | None = None, *, run: RunRecord | None = None
    ) -> None:
        """See ``CheckpointStore``."""
        parts = Parts(checkpoint)
        if parts.size > self.max_checkpoint_bytes:
            parts.refuse_too_large(checkpoint, self.max_checkpoint_bytes)
        agent_id = checkpoint.agent_id
        if not checkpoint.id.startswith(id_prefix(agent_id)):
            self._make_findable(checkpoint.id, agent_id)
        draft = parts.draft_by_memory(self._memory, agent_id)
        draft = draft or parts.draft_of_all(Basis.EMPTY)
        for race in range(_MAX_RACES + 1):
            try:
                base = self._append(agent_id, checkpoint.id, draft, lease, run)
            except SavedBefore as before:
                return self._refuse_different(checkpoint, parts.digest, before.digest)
            except BasisGone:
                draft = self._draft_on_latest(agent_id, parts, last_try=race + 1 >= _MAX_RACES)
            else:
                mark = f"{base} {draft.place}"
                end = base + len(draft.messages)
                return self._memory.remember(checkpoint, mark, end, draft.ranges.at(base))
        raise AssertionError("a save that rests on nothing cannot be refused for its basis")

    def _make_findable(self, checkpoint_id: str, agent_id: str) -> None:
        """Prepare for an id that does not say whose it is."""
        for other in self._agents_that_may_have(checkpoint_id):
            if other != agent_id and self._read(other, checkpoint_id) is not None:
                raise AlreadyExists(what=f"Checkpoint {checkpoint_id}", agent_id=other)
        self._register(checkpoint_id, agent_id)

    def _draft_on_latest(self, agent_id: str, parts: Parts, *, last_try: bool) -> Draft:
        if last_try:
            return parts.draft_of_all(Basis.ANY)
        try:
            latest = self._read(agent_id, None)
            if latest is None:
                return parts.draft_of_all(Basis.EMPTY)
            record = latest.record()
            Reading().checkpoint(record, latest.messages)
        except CheckpointDamaged:
            # Nothing can be built on it; the agent goes on beside it.
            return parts.draft_of_all(Basis.ANY)
        return parts.draft_by_search(record, latest.messages)

    def _refuse_different(self, checkpoint: Checkpoint, digest: str, stored: str) -> None:
        if digest == stored:
            return
        # Equal values can be written differently (the order of keys): only their content decides.
        loaded = self._loaded(self._read(checkpoint.agent_id, checkpoint.id))
        if loaded is None or not is_same(loaded, checkpoint):
            raise AlreadyExists(what=f"Checkpoint {checkpoint.id}", agent_id=checkpoint.agent_id)

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        """See ``CheckpointStore``."""
        return self._loaded(self._read(checked_name(agent_id), None))

    def load(self, checkpoint_id: str) -> Checkpoint | None:
        """See ``CheckpointStore``."""
        checked_name(checkpoint_id, "A checkpoint id")
        for agent_id in self._agents_that_may_have(checkpoint_id):
            found = self._loaded(self._read(agent_id, checkpoint_id))
            if found is not None:
                return found
        return None

    def _loaded(self, stored: Stored | None) -> Checkpoint | None:
        if stored is None:
            return None
        record = stored.record()
        checkpoint = Reading().checkpoint(record, stored.messages)
        self._memory.remember(checkpoint, record.mark, record.end, record.ranges)
        return checkpoint

    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        """See ``CheckpointStore``."""
        if limit is not None and limit < 0:
            raise ValueError(f"list(limit={limit}): limit is 0 or more, or None")
        return listed(agent_id, *self._read_many(checked_name(agent_id), limit))

    def history(self, agent_id: str) -> builtins.list[CheckpointInfo]:
        """See ``CheckpointStore``."""
        records, policy = self._newest_first(checked_name(agent_id)), self.policy(agent_id)
        return [record.info(policy) for record in records]

    def _newest_first(self, agent_id: str) -> builtins.list[Record]:
        parsed = (Record.parse(agent_id, name, line) for name, line in self._lines(agent_id))
        return sorted(parsed, key=lambda record: record.seq, reverse=True)

    def _ids_newest_first(self, agent_id: str) -> builtins.list[str]:
        lines = self._lines(checked_name(agent_id))
        return [name for name, _ in newest_first(lines, damaged=OLDEST)]


def listed(
    agent_id: str, lines: Sequence[tuple[str, bytes]], messages: Mapping[int, bytes]
) -> list[Checkpoint]:
    """The checkpoints of some lines, newest first, and their messages. Raises ``CheckpointDamaged``."""
    reading = Reading()

    def read(named: tuple[str, bytes]) -> Checkpoint:
        return reading.checkpoint(Record.parse(agent_id, *named), messages)

    return all_readable(lines, read)


OLDEST, NEWEST = float("-inf"), float("inf")


def newest_first(
    lines: Iterable[tuple[str, bytes]], *, damaged: float = NEWEST
) -> builtins.list[tuple[str, bytes]]:
    """Order ids and lines by their sequence, the newest first, without taking them apart.

    A line that has no number where it should be is damaged. For a reader it counts as the newest, so
    that it is met and not passed over; for a prune as the oldest, so that it outlives none that can be
    read.
    """
    return sorted(lines, key=lambda named: _sequence(named[1], damaged), reverse=True)


def _sequence(line: bytes, damaged: float) -> float:
    number = line.split(b" ", 2)[1:2]
    return int(number[0]) if number and number[0].isdigit() else damaged


def ranges_of_all(agent_id: str, lines: Iterable[tuple[str, bytes]]) -> Ranges:
    """The parts of the log that some checkpoints need, each once, in order."""
    spans: list[Span] = []
    for checkpoint_id, line in lines:
        try:
            spans += Record.parse(agent_id, checkpoint_id, line).ranges.spans
        except CheckpointDamaged:
            continue  # it is met, and named, when the line is read
    return Ranges.union(spans)
