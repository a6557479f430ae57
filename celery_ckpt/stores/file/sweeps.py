"""What a watchdog and a sweep look at, and what a sweep does, in files."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

from celery_ckpt.clock import microseconds
from celery_ckpt.errors import CheckpointError, StoreDamaged
from celery_ckpt.names import checked_name
from celery_ckpt.retention.policy import old_runs, oldest_end
from celery_ckpt.retention.report import Finding, LastRun, Notes, Pruned, Rounds, Sight, Verdict
from celery_ckpt.stores.file.directory import Agent
from celery_ckpt.stores.file.doctor import ailments_of
from celery_ckpt.stores.file.schedule import Moments
from celery_ckpt.stores.file.steps import StepTable
from celery_ckpt.stores.file.trash import FileDropping
from celery_ckpt.stores.log.marks import marks
from celery_ckpt.stores.rules.pruning import carry_out, damaged, seen_of


class FileSweeps(FileDropping):
    """The part of the store that knows when to look at agents, and tidies up."""

    # -- moments -------------------------------------------------------------------------------------

    def watch(self, agent_id: str, after: float, rounds: Rounds = Rounds.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        return self._moments[rounds].set(checked_name(agent_id), self._now(), after)

    def unwatch(self, moments: Mapping[str, int], rounds: Rounds = Rounds.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        return sum(self._moments[rounds].remove(name, moment) for name, moment in moments.items())

    def due(
        self, limit: int, hold: float, rounds: Rounds = Rounds.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """See ``CheckpointStore``."""
        moments, now = self._adopted(rounds), self._now()
        held = ((name, moments.move(name, at, now, hold)) for name, at in moments.come(now))
        return list(islice(((name, at) for name, at in held if at is not None), limit))

    def count_due(self, rounds: Rounds = Rounds.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        return sum(1 for _ in self._adopted(rounds).come(self._now()))

    def _adopted(self, rounds: Rounds) -> Moments:
        """The moments, also of those agents that were saved before there were sweeps."""
        moments = self._moments[rounds]
        if rounds is Rounds.SWEEP and not moments.is_there and self._root.is_dir():
            moments.adopt(list(self.agents()), self._now())
        return moments

    def _now(self) -> int:
        return microseconds(self._clock.now())

    def _list(self, agent: Agent) -> None:
        """Have a sweep look at the agent soon; until it is done, no save has to say so again."""
        if not agent.listed.exists():
            self.watch(agent.agent_id, 0, Rounds.SWEEP)
            agent.listed.touch(mode=0o600)

    # -- sweeping ------------------------------------------------------------------------------------

    def notes(self, agent_id: str) -> Notes:
        """See ``CheckpointStore``."""
        with self._agents.reading(agent_id) as agent:
            return Notes() if agent is None else agent.notes()

    def set_notes(self, agent_id: str, before: Notes, after: Notes) -> bool:
        """See ``CheckpointStore``."""
        with self._agents.changing(agent_id) as agent:
            if agent is None or agent.notes() != before:
                return False
            self.watch(agent_id, 0, Rounds.SWEEP)
            agent.set_notes(after)
            return True

    def sights(self, agent_ids: Sequence[str]) -> builtins.list[Sight]:
        """See ``CheckpointStore``."""
        return [self._sight(agent_id) for agent_id in agent_ids]

    def _sight(self, agent_id: str) -> Sight:
        try:
            with self._agents.reading(agent_id) as agent:
                return _Broom(self, agent_id, agent).sight()
        except CheckpointError as error:
            return damaged(agent_id, error)

    def carry_out(self, verdicts: Sequence[Verdict]) -> builtins.list[Pruned]:
        """See ``CheckpointStore``."""
        return [self._carry_out(verdict) for verdict in verdicts]

    def _carry_out(self, verdict: Verdict) -> Pruned:
        agent_id = verdict.sight.agent_id
        try:
            with self._agents.changing(agent_id) as agent:
                pruned = carry_out(_Broom(self, agent_id, agent), verdict)
        except StoreDamaged:
            if not verdict.sight.damage:
                raise
            # Not even its name can be read; it has its next moment all the same.
            pruned = carry_out(_Broom(self, agent_id, None), verdict)
        self._tidy_after(pruned)
        return pruned

    def _tidy_after(self, pruned: Pruned) -> None:
        """Drop what lies elsewhere than in the agent's directory."""
        self._unregister(pruned.agent_id, list(pruned.ids))
        if pruned.forgotten:
            self._empty_trash()

    def ailments(self, repair: bool = False) -> Iterator[Finding]:
        """See ``CheckpointStore``."""
        return ailments_of(self, repair)


class _Broom:
    """A ``sweeps.Broom``. Its caller holds the agent's lock."""

    def __init__(self, store: FileSweeps, agent_id: str, agent: Agent | None) -> None:
        self._store, self._agent_id, self._agent = store, agent_id, agent

    def sight(self) -> Sight:
        """See ``sweeps.Broom``."""
        agent, agent_id = self._agent, self._agent_id
        if agent is None:
            return Sight(agent_id)
        desk, notes, lease = self._store._desk(agent), agent.notes(), agent.lease()
        runs, open_runs = desk.runs(), desk.open_runs()
        counts = agent.journal.seq, len(StepTable(agent)), len(runs), len(open_runs)
        return Sight(
            agent_id,
            seen_of(*counts, lease, notes),
            marks(agent_id, agent.journal.lines(), notes),
            notes,
            bool(open_runs) or lease.is_held(self._store._clock.now()),
            any(run.run_id == agent_id for run in runs),
            LastRun.of(runs[-1] if runs else None),
            oldest_end(agent_id, runs),
        )

    def remove(self, checkpoint_ids: builtins.list[str]) -> int:
        """See ``sweeps.Broom``."""
        assert self._agent is not None
        before = self._size()
        self._store._remove(self._agent, checkpoint_ids)
        return max(0, before - self._size())

    def forget_runs(self, before: datetime) -> tuple[int, int]:
        """See ``sweeps.Broom``."""
        assert self._agent is not None
        size, desk = self._size(), self._store._desk(self._agent)
        gone = old_runs(self._agent_id, desk.runs(), before)
        desk.forget([run.run_id for run in gone])
        return len(gone), max(0, size - self._size())

    def forget(self) -> int:
        """See ``sweeps.Broom``."""
        assert self._agent is not None
        size = self._size()
        self._store._move_to_trash(self._agent)
        return size

    def _size(self) -> int:
        assert self._agent is not None
        return sum(path.stat().st_size for path in self._agent.directory.iterdir())

    def unlist(self) -> None:
        """See ``sweeps.Broom``."""
        if self._agent is not None:
            self._agent.listed.unlink(missing_ok=True)

    def move(self, moment: int, after: float | None) -> None:
        """See ``sweeps.Broom``."""
        moments = self._store._moments[Rounds.SWEEP]
        if after is None:
            moments.remove(self._agent_id, moment)
        else:
            moments.move(self._agent_id, moment, self._store._now(), after)
