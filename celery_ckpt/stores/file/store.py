"""FileCheckpointStore: a directory, several processes at once, every save synced to the disk.

agents/k3/k3f9...   one directory an agent, named by the digest of its name, so that any name is safe:
    name            {"format": 1, "agent_id": ...}
    lock            held shared to read, exclusively to write
    journal-*, tip  checkpoints and messages (see journal.py)
    lease, steps, runs, end, notes, listed
due/..., sweep/...  when a watchdog, or a sweep, should look at which agent
ids/...             the agents of checkpoint ids that do not name theirs
trash/...           what is being deleted
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.errors import AlreadyExists, CheckpointDamaged, ConfigurationError
from celery_ckpt.json_values import encode
from celery_ckpt.names import checked_name, locator_in
from celery_ckpt.records import Lease, RunRecord, Schedule
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES
from celery_ckpt.stores.file.directory import Agent, Agents
from celery_ckpt.stores.file.filesystem import add, make_directory, translated
from celery_ckpt.stores.file.rewrite import FileRewriting
from celery_ckpt.stores.file.schedule import Moments
from celery_ckpt.stores.log.draft import Basis, Draft
from celery_ckpt.stores.log.record import Record
from celery_ckpt.stores.log.store import (
    BasisGone,
    SavedBefore,
    Stored,
    newest_first,
    ranges_of_all,
)
from celery_ckpt.stores.permissions import open_to_others
from celery_ckpt.stores.rules import turns


class FileCheckpointStore(FileRewriting):
    """Keeps everything in files below a directory, which is made when the first agent is.

    Raises:
        ConfigurationError: there is something else of that name.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        clock: Clock = system_clock,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
    ) -> None:
        super().__init__(max_checkpoint_bytes=max_checkpoint_bytes)
        self._root = Path(directory).absolute()
        if self._root.exists() and not self._root.is_dir():
            raise ConfigurationError(reason=f"{self._root} is no directory: name one for the store.")
        self._agents = Agents(self._root)
        self._moments = {on: Moments(self._root, on) for on in Schedule}
        self._clock = clock

    def risks(self) -> builtins.list[str]:
        """See ``CheckpointStore``."""
        with translated(self._root):
            return open_to_others(self._root)

    def _append(
        self,
        agent_id: str,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
    ) -> int:
        with self._agents.writing(agent_id) as agent:
            journal = agent.journal
            stored = journal.live.get(checkpoint_id)
            if stored is not None:
                raise SavedBefore(Record.parse(agent_id, checkpoint_id, stored.record).digest)
            self._refuse(agent, lease)
            if draft.basis is Basis.EMPTY and journal.live:
                raise BasisGone
            if isinstance(draft.basis, str) and not journal.has(draft.basis, draft.mark):
                raise BasisGone
            if run is not None:
                return self._save_with_run(agent, checkpoint_id, draft, run)
            if (agent.directory / "end").exists():
                # An earlier save of this very checkpoint, with a run, may have failed.
                self._desk(agent).write()
            self._list(agent)
            return journal.save(checkpoint_id, draft.rest, draft.messages)

    def _save_with_run(self, agent: Agent, checkpoint_id: str, draft: Draft, run: RunRecord) -> int:
        desk = self._desk(agent)
        turns.refuse_unknown(desk, run)
        self._list(agent)
        desk.announce_end(checkpoint_id, turns.with_usage(desk, run))
        base = agent.journal.save(checkpoint_id, draft.rest, draft.messages)
        self._desk(agent).write()
        return base

    def _read(self, agent_id: str, checkpoint_id: str | None) -> Stored | None:
        with self._agents.reading(agent_id) as agent:
            if agent is None:
                return None
            journal = agent.journal
            name = next(reversed(journal.live), None) if checkpoint_id is None else checkpoint_id
            if name not in journal.live:
                if name is not None and journal.is_incomplete():
                    reason = "it may be one of the journal's unreadable records"
                    raise CheckpointDamaged(agent_id=agent_id, checkpoint_id=name, reason=reason)
                return None
            line = journal.live[name].record
            ranges = Record.parse(agent_id, name, line).ranges
            return Stored(agent_id, name, line, journal.messages(ranges))

    def _read_many(
        self, agent_id: str, limit: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], Mapping[int, bytes]]:
        with self._agents.reading(agent_id) as agent:
            if agent is None:
                return [], {}
            journal = agent.journal
            lines = newest_first(journal.lines())[:limit]
            return lines, journal.messages(ranges_of_all(agent_id, lines))

    def _lines(self, agent_id: str) -> Iterable[tuple[str, bytes]]:
        with self._agents.reading(agent_id) as agent:
            return [] if agent is None else agent.journal.lines()

    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        """See ``CheckpointStore``."""
        for checkpoint_id in checkpoint_ids:
            checked_name(checkpoint_id, "A checkpoint id")
        with self._agents.changing(checked_name(agent_id)) as agent:
            if agent is None:
                return 0
            removed = self._remove(agent, checkpoint_ids)
        self._unregister(agent_id, checkpoint_ids)
        return removed

    def delete(self, agent_id: str) -> int:
        """See ``CheckpointStore``."""
        with self._agents.changing(checked_name(agent_id)) as agent:
            if agent is None:
                return 0
            names = list(agent.journal.live)
            self._move_to_trash(agent)
        self._unregister(agent_id, names)
        self._empty_trash()
        return len(names)

    def agents(self) -> Iterator[str]:
        """See ``CheckpointStore``."""
        return self._agents.names()

    # -- ids that do not name their agent ------------------------------------------------------------

    def _agents_that_may_have(self, checkpoint_id: str) -> Iterable[str]:
        yield from self._agents.with_locator(locator_in(checkpoint_id))
        owner = self._registered(checkpoint_id)
        if owner is not None:
            yield owner

    def _register(self, checkpoint_id: str, agent_id: str) -> None:
        path = self._agents.id_file(checkpoint_id)
        with translated(path):
            make_directory(path.parent)
            is_new = add(path, encode({"id": checkpoint_id, "agent_id": agent_id}))
        if not is_new and self._registered(checkpoint_id) != agent_id:
            raise AlreadyExists(what=f"Checkpoint {checkpoint_id}", agent_id=agent_id)

    def _refuse(self, agent: Agent, lease: Lease | None) -> None:
        agent.lease().refuse(agent.agent_id, lease, self._clock.now())
