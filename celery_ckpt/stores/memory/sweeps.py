"""What a watchdog and a sweep look at, and what a sweep does, in memory."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import microseconds
from celery_ckpt.names import checked_name
from celery_ckpt.retention.policy import old_runs, oldest_end
from celery_ckpt.retention.report import (
    PIN,
    Finding,
    LastRun,
    Mark,
    Notes,
    Pruned,
    Rounds,
    Sight,
    Verdict,
)
from celery_ckpt.stores.findings import moment_for_nobody
from celery_ckpt.stores.memory.ledger import MemoryLedger
from celery_ckpt.stores.rules.pruning import carry_out, seen_of


class MemorySweeps(MemoryLedger):
    """The part of the store that knows when to look at agents, and tidies up."""

    _by_id: dict[str, Checkpoint]

    # -- moments -------------------------------------------------------------------------------------

    def watch(self, agent_id: str, after: float, rounds: Rounds = Rounds.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        with self._lock:
            moment = microseconds(self._clock.now()) + round(after * 1_000_000)
            if self._moments[rounds].get(checked_name(agent_id)) == moment:
                moment -= 1
            self._moments[rounds][agent_id] = moment
            return moment

    def unwatch(self, moments: Mapping[str, int], rounds: Rounds = Rounds.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        with self._lock:
            known = self._moments[rounds]
            over = [name for name, moment in moments.items() if known.get(name) == moment]
            for name in over:
                del known[name]
            return len(over)

    def due(
        self, limit: int, hold: float, rounds: Rounds = Rounds.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """See ``CheckpointStore``."""
        with self._lock:
            come = self._come(rounds)[:limit]
            return [(agent_id, self.watch(agent_id, hold, rounds)) for agent_id in come]

    def count_due(self, rounds: Rounds = Rounds.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        with self._lock:
            return len(self._come(rounds))

    def _come(self, rounds: Rounds) -> builtins.list[str]:
        now = microseconds(self._clock.now())
        return [agent_id for agent_id, moment in self._moments[rounds].items() if moment <= now]

    # -- sweeping ------------------------------------------------------------------------------------

    def notes(self, agent_id: str) -> Notes:
        """See ``CheckpointStore``."""
        with self._lock:
            return self._known(agent_id).notes

    def set_notes(self, agent_id: str, before: Notes, after: Notes) -> bool:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._agents.get(checked_name(agent_id))
            if agent is None or agent.notes != before:
                return False
            self.watch(agent_id, 0, Rounds.SWEEP)
            agent.notes = after
            return True

    def sights(self, agent_ids: Sequence[str]) -> builtins.list[Sight]:
        """See ``CheckpointStore``."""
        with self._lock:
            return [_Broom(self, agent_id).sight() for agent_id in agent_ids]

    def carry_out(self, verdicts: Sequence[Verdict]) -> builtins.list[Pruned]:
        """See ``CheckpointStore``."""
        with self._lock:
            return [carry_out(_Broom(self, one.sight.agent_id), one) for one in verdicts]

    def ailments(self, repair: bool = False) -> Iterator[Finding]:
        """See ``CheckpointStore``."""
        with self._lock:
            gone = [
                (rounds, name)
                for rounds, moments in self._moments.items()
                for name in moments
                if name not in self._agents
            ]
            for rounds, name in gone if repair else ():
                del self._moments[rounds][name]
        for rounds, name in gone:
            yield moment_for_nobody(name, rounds, repair)


class _Broom:
    """A ``sweeps.Broom``. Its caller holds the lock."""

    def __init__(self, store: MemorySweeps, agent_id: str) -> None:
        self._store, self._agent_id = store, agent_id
        self._agent = store._known(agent_id)

    def sight(self) -> Sight:
        """See ``sweeps.Broom``."""
        agent, agent_id = self._agent, self._agent_id
        if agent_id not in self._store._agents:
            return Sight(agent_id)
        runs, notes, lease = list(agent.runs.values()), agent.notes, agent.lease
        open_runs = agent.open_runs()
        return Sight(
            agent_id,
            seen_of(agent.seq, len(agent.steps), len(runs), len(open_runs), lease, notes),
            [_mark(seq, agent.checkpoints[seq], notes) for seq in sorted(agent.checkpoints)[::-1]],
            notes,
            is_busy=bool(open_runs) or lease.is_held(self._store._clock.now()),
            is_named_by_task=agent_id in agent.runs,
            last_run=LastRun.of(runs[-1] if runs else None),
            oldest_end=oldest_end(agent_id, runs),
        )

    def remove(self, checkpoint_ids: builtins.list[str]) -> int:
        """See ``sweeps.Broom``."""
        self._store.remove(self._agent_id, checkpoint_ids)
        return 0

    def forget_runs(self, before: datetime) -> tuple[int, int]:
        """See ``sweeps.Broom``."""
        gone = old_runs(self._agent_id, list(self._agent.runs.values()), before)
        for run in gone:
            self._agent.drop_steps_of(run.run_id)
            del self._agent.runs[run.run_id]
        return len(gone), 0

    def forget(self) -> int:
        """See ``sweeps.Broom``."""
        self._store.delete(self._agent_id)
        return 0

    def unlist(self) -> None:
        """See ``sweeps.Broom``."""
        self._agent.is_listed = False

    def move(self, moment: int, after: float | None) -> None:
        """See ``sweeps.Broom``."""
        if self._store.unwatch({self._agent_id: moment}, Rounds.SWEEP) and after is not None:
            self._store.watch(self._agent_id, after, Rounds.SWEEP)


def _mark(seq: int, checkpoint: Checkpoint, notes: Notes) -> Mark:
    pin = notes.label_of(checkpoint.id, checkpoint.metadata.get(PIN))
    return Mark(checkpoint.id, seq, microseconds(checkpoint.created_at), pin)
