"""``LogStore``: how checkpoints are saved, loaded and listed in a store with a log.

A log store implements the primitives below, each atomic. Everything that can be decided without the
disk or the network is decided here, once.
"""
# ruff: noqa: D102  (CheckpointStore documents these methods)

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery_ckpt.checkpoint import Checkpoint, is_same
from celery_ckpt.errors import AlreadyExists, CheckpointDamaged, CheckpointError
from celery_ckpt.event_log import LogEntry
from celery_ckpt.names import checked_name, locator
from celery_ckpt.records import CheckpointInfo, Lease, MessagePage, RunRecord, Step
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, CheckpointStore, checked_limit
from celery_ckpt.stores.encryption_tag import are_encrypted, plain_history
from celery_ckpt.stores.log.draft import Basis, Draft, Memory, Parts
from celery_ckpt.stores.log.ranges import Ranges, Span
from celery_ckpt.stores.log.reader import Reading, all_readable, page_of
from celery_ckpt.stores.log.record import Record
from celery_ckpt.usage import Usage

#: After this many lost races for a basis, a save writes all its messages.
_MAX_RACES = 3


@dataclass(frozen=True)
class Stored:
    """A checkpoint as it was read: its names, its line, and its messages by offset."""

    agent_id: str
    checkpoint_id: str
    line: bytes
    messages: Mapping[int, bytes]

    def record(self) -> Record:
        """Return the parsed line. Raises ``CheckpointDamaged``."""
        return Record.parse(self.agent_id, self.checkpoint_id, self.line)


class BasisGone(Exception):
    """The save was refused because its basis does not exist. Nothing was written."""


class SavedBefore(Exception):
    """The id exists already; ``digest`` identifies its content. Nothing was written."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest


class LogStore(CheckpointStore):
    """A store with an append-only log of messages for each agent."""

    def __init__(self, *, max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES) -> None:
        self.max_checkpoint_bytes = max_checkpoint_bytes
        self._memory = Memory()

    # -- primitives ----------------------------------------------------------------------------------

    @abstractmethod
    def _append(
        self,
        agent_id: str,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
        log: Sequence[LogEntry],
    ) -> int:
        """Write a draft, and the record of a run if given, in one atomic step. Return the draft's base.

        In the same step, append the entries to the event log.

        Raises:
            SavedBefore, LeaseLost, LeaseHeld, BasisGone, RunNotFound: checked in this order.
        """

    @abstractmethod
    def _read(self, agent_id: str, checkpoint_id: str | None) -> Stored | None:
        """Read one checkpoint of an agent, or its latest, in one atomic step."""

    @abstractmethod
    def _read_many(
        self, agent_id: str, limit: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], Mapping[int, bytes]]:
        """Return ids and lines of the newest checkpoints, newest first, and the messages they need."""

    @abstractmethod
    def _read_messages(
        self, agent_id: str, checkpoint_id: str, wanted: slice
    ) -> tuple[int, int, builtins.list[bytes]] | None:
        """Read some messages. Return how many there are, the number of the first, and the lines."""

    @abstractmethod
    def _lines(self, agent_id: str) -> Iterable[tuple[str, bytes]]:
        """Return the ids and lines of all checkpoints of the agent, in any order."""

    @abstractmethod
    def _agents_that_may_have(self, checkpoint_id: str) -> Iterable[str]:
        """Return the agents that may have a checkpoint with this id."""

    @abstractmethod
    def _register(self, checkpoint_id: str, agent_id: str) -> None:
        """Register the agent of an id that does not name it, before the checkpoint is saved."""

    # -- what follows from them ----------------------------------------------------------------------

    def save(
        self,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        run: RunRecord | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        parts = Parts(checkpoint)
        if parts.size > self.max_checkpoint_bytes:
            parts.refuse_too_large(checkpoint, self.max_checkpoint_bytes)
        agent_id = checkpoint.agent_id
        if not checkpoint.id.startswith(f"{locator(agent_id)}-"):
            self._make_findable(checkpoint.id, agent_id)
        draft = parts.draft_by_memory(self._memory, agent_id)
        draft = draft or parts.draft_of_all(Basis.EMPTY)
        for race in range(_MAX_RACES + 1):
            try:
                base = self._append(agent_id, checkpoint.id, draft, lease, run, log)
            except SavedBefore as before:
                return self._refuse_different(checkpoint, parts.digest, before.digest)
            except BasisGone:
                draft = self._draft_on_latest(agent_id, parts, last_try=race + 1 >= _MAX_RACES)
            else:
                mark = f"{base} {draft.place}"
                end = base + len(draft.messages)
                return self._memory.remember(checkpoint, mark, end, draft.ranges.at(base))
        raise AssertionError("a save without a basis was refused because of its basis")

    def record_and_save(
        self,
        step: Step,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> CheckpointError | None:
        agent_id = checkpoint.agent_id
        parts = Parts(checkpoint)
        is_usual = parts.size <= self.max_checkpoint_bytes and step.agent_id == agent_id
        if not (is_usual and checkpoint.id.startswith(f"{locator(agent_id)}-")):
            return super().record_and_save(step, checkpoint, lease, paid=paid, log=log)
        draft = parts.draft_by_memory(self._memory, agent_id) or parts.draft_of_all(Basis.EMPTY)
        base = self._record_and_append(step, paid, log, checkpoint.id, draft, lease)
        if base is not None:
            end = base + len(draft.messages)
            self._memory.remember(checkpoint, f"{base} {draft.place}", end, draft.ranges.at(base))
            return None
        try:
            self.save(checkpoint, lease)
        except CheckpointError as error:
            return error
        return None

    def _record_and_append(
        self,
        step: Step,
        paid: Usage | None,
        log: Sequence[LogEntry],
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
    ) -> int | None:
        """Record a step with its entries, and write a draft unless something prevents that.

        Returns:
            The draft's base. ``None`` means that the step is recorded, and that the checkpoint must be
            saved by ``save``.
        """
        self.record_step(step, lease, paid=paid, log=log)
        return None

    def _make_findable(self, checkpoint_id: str, agent_id: str) -> None:
        """Register an id that does not name its agent. Raises ``AlreadyExists``."""
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
            # Nothing can build on a damaged checkpoint. The agent continues without it.
            return parts.draft_of_all(Basis.ANY)
        return parts.draft_by_search(record, latest.messages)

    def _refuse_different(self, checkpoint: Checkpoint, digest: str, stored: str) -> None:
        if digest == stored:
            return
        # Equal values can be written differently (the order of keys): the content decides.
        loaded = self._loaded(self._read(checkpoint.agent_id, checkpoint.id))
        if loaded is None or not is_same(loaded, checkpoint):
            raise AlreadyExists(what=f"Checkpoint {checkpoint.id}", agent_id=checkpoint.agent_id)

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        return self._loaded(self._read(checked_name(agent_id), None))

    def load(self, checkpoint_id: str) -> Checkpoint | None:
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
        checkpoint = self._reading().checkpoint(record, stored.messages)
        self._memory.remember(checkpoint, record.mark, record.end, record.ranges)
        return checkpoint

    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        checked_limit(limit, "list")
        lines, messages = self._read_many(checked_name(agent_id), limit)
        return listed(agent_id, lines, messages, self._reading())

    def _reading(self) -> Reading:
        return Reading(refuses_encrypted=not self.reads_encrypted)

    def history(
        self, agent_id: str, *, limit: int | None = None, before: int | None = None
    ) -> builtins.list[CheckpointInfo]:
        checked_limit(limit, "history")
        lines, policy = self._page(checked_name(agent_id), limit, before)
        records = [Record.parse(agent_id, name, line) for name, line in lines]
        return plain_history(self, agent_id, [record.info(policy) for record in records])

    def _page(
        self, agent_id: str, limit: int | None, before: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], AgentPolicy]:
        """Return ids and lines for ``history``, newest first, and the agent's policy."""
        lines = newest_first(self._lines(agent_id), before=before)[:limit]
        return lines, self.policy(agent_id)

    def messages(
        self, checkpoint_id: str, start: int = 0, stop: int | None = None
    ) -> MessagePage | None:
        checked_name(checkpoint_id, "A checkpoint id")
        wanted = slice(start, stop)
        for agent_id in self._agents_that_may_have(checkpoint_id):
            found = self._read_messages(agent_id, checkpoint_id, wanted)
            if found is not None:
                page = page_of(agent_id, checkpoint_id, *found)
                if page.messages and not self.reads_encrypted and are_encrypted(page.messages):
                    self.load(checkpoint_id)  # raises if the messages are not just alike
                return page
        return None

    def _ids_newest_first(self, agent_id: str) -> builtins.list[str]:
        lines = self._lines(checked_name(agent_id))
        return [name for name, _ in newest_first(lines, damaged=OLDEST)]


def listed(
    agent_id: str,
    lines: Sequence[tuple[str, bytes]],
    messages: Mapping[int, bytes],
    reading: Reading | None = None,
) -> list[Checkpoint]:
    """Return the checkpoints of some lines, newest first. Raises ``CheckpointDamaged``."""
    reading = reading or Reading()

    def read(named: tuple[str, bytes]) -> Checkpoint:
        return reading.checkpoint(Record.parse(agent_id, *named), messages)

    return all_readable(lines, read)


OLDEST, NEWEST = float("-inf"), float("inf")


def newest_first(
    lines: Iterable[tuple[str, bytes]], *, damaged: float = NEWEST, before: int | None = None
) -> builtins.list[tuple[str, bytes]]:
    """Sort ids and lines by sequence number, newest first, without parsing the lines.

    A line without the number is damaged. A reader treats it as the newest, so that the damage is
    noticed. Pruning treats it as the oldest, so that it is removed before any readable checkpoint.
    """
    if before is not None:
        lines = (named for named in lines if _sequence(named[1], damaged) < before)
    return sorted(lines, key=lambda named: _sequence(named[1], damaged), reverse=True)


def _sequence(line: bytes, damaged: float) -> float:
    number = line.split(b" ", 2)[1:2]
    return int(number[0]) if number and number[0].isdigit() else damaged


def ranges_of_all(agent_id: str, lines: Iterable[tuple[str, bytes]]) -> Ranges:
    """Return the parts of the log that some checkpoints need, each once, in order."""
    spans: list[Span] = []
    for checkpoint_id, line in lines:
        try:
            spans += Record.parse(agent_id, checkpoint_id, line).ranges.spans
        except CheckpointDamaged:
            continue  # reported when the line is read
    return Ranges.union(spans)
