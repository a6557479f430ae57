"""MemoryCheckpointStore: everything in this process. The reference model of the contract.

Checkpoints are immutable and share their messages, so keeping them as they are costs the new messages
only. One lock makes every method one atomic step.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Iterator
from weakref import WeakSet

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.codec import is_same
from celery_ckpt.errors import AlreadyExists
from celery_ckpt.names import checked_name
from celery_ckpt.records import AgentContents, Change, CheckpointInfo, Lease, RunRecord, Schedule
from celery_ckpt.retention.report import PIN, AgentPolicy
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES
from celery_ckpt.stores.log.draft import Parts
from celery_ckpt.stores.memory.ledger import MemoryAgent
from celery_ckpt.stores.memory.sweeps import MemorySweeps
from celery_ckpt.stores.rules import turns


class MemoryCheckpointStore(MemorySweeps):
    """Keeps everything in memory, for tests and for trying things out."""

    def __init__(
        self,
        *,
        clock: Clock = system_clock,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
    ) -> None:
        self.max_checkpoint_bytes = max_checkpoint_bytes
        self._clock = clock
        self._lock = threading.RLock()
        self._agents: dict[str, MemoryAgent] = {}
        self._by_id: dict[str, Checkpoint] = {}
        self._moments: dict[Schedule, dict[str, int]] = {on: {} for on in Schedule}
        _OPEN.add(self)

    def risks(self) -> builtins.list[str]:
        """See ``CheckpointStore``."""
        return ["everything is in the memory of one process, and goes with it"]

    def save(
        self, checkpoint: Checkpoint, lease: Lease | None = None, *, run: RunRecord | None = None
    ) -> None:
        """See ``CheckpointStore``."""
        Parts(checkpoint).refuse_too_large(checkpoint, self.max_checkpoint_bytes)
        self._refuse_too_large(run)
        with self._lock:
            if (stored := self._by_id.get(checkpoint.id)) is not None:
                if stored is not checkpoint and not is_same(stored, checkpoint):
                    what = f"Checkpoint {checkpoint.id}"
                    raise AlreadyExists(what=what, agent_id=stored.agent_id)
                return
            self._known(checkpoint.agent_id).lease.refuse(checkpoint.agent_id, lease, self._clock.now())
            turns.refuse_unknown(self._known(checkpoint.agent_id), run)
            agent = self._writable(checkpoint.agent_id, lease)
            if run is not None:
                agent.put(turns.with_usage(agent, run))
            if not agent.is_listed:
                self.schedule(checkpoint.agent_id, 0, Schedule.SWEEP)
                agent.is_listed = True
            agent.seq += 1
            agent.checkpoints[agent.seq] = self._by_id[checkpoint.id] = checkpoint

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        """See ``CheckpointStore``."""
        with self._lock:
            checkpoints = self._known(agent_id).checkpoints
            return checkpoints[max(checkpoints)] if checkpoints else None

    def load(self, checkpoint_id: str) -> Checkpoint | None:
        """See ``CheckpointStore``."""
        with self._lock:
            return self._by_id.get(checked_name(checkpoint_id, "A checkpoint id"))

    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        """See ``CheckpointStore``."""
        if limit is not None and limit < 0:
            raise ValueError(f"list(limit={limit}): limit is 0 or more, or None")
        with self._lock:
            checkpoints = self._known(agent_id).checkpoints
            return [checkpoints[seq] for seq in sorted(checkpoints, reverse=True)[:limit]]

    def history(self, agent_id: str) -> builtins.list[CheckpointInfo]:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._known(agent_id)
            newest_first = sorted(agent.checkpoints, reverse=True)
            return [_info(seq, agent.checkpoints[seq], agent.policy) for seq in newest_first]

    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        """See ``CheckpointStore``."""
        for checkpoint_id in checkpoint_ids:
            checked_name(checkpoint_id, "A checkpoint id")
        with self._lock:
            agent = self._known(agent_id)
            checkpoints = agent.checkpoints
            going = set(checkpoint_ids)
            gone = [seq for seq, checkpoint in checkpoints.items() if checkpoint.id in going]
            for seq in gone:
                del self._by_id[checkpoints.pop(seq).id]
            agent.policy = agent.policy.without(going)
            return len(gone)

    def delete(self, agent_id: str) -> int:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._agents.pop(checked_name(agent_id), MemoryAgent(agent_id))
            self._moments[Schedule.SWEEP].pop(agent_id, None)
            for checkpoint in agent.checkpoints.values():
                del self._by_id[checkpoint.id]
            return len(agent.checkpoints)

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        """See ``Upkeep``."""
        with self._lock:
            agent = self._known(agent_id)
            places = sorted(agent.checkpoints)
            steps, runs = builtins.list(agent.steps.values()), builtins.list(agent.runs.values())
            after = change(AgentContents([agent.checkpoints[seq] for seq in places], steps, runs))
            if after is not None:
                agent.lease.refuse(agent_id, lease, self._clock.now())
                for seq, checkpoint in zip(places, after.checkpoints, strict=True):
                    agent.checkpoints[seq] = self._by_id[checkpoint.id] = checkpoint
                agent.steps = {(step.run_id, step.key): step for step in after.steps}
                agent.runs = {run.run_id: run for run in after.runs}
            return True

    def agents(self) -> Iterator[str]:
        """See ``CheckpointStore``."""
        with self._lock:
            return iter(list(self._agents))


def _info(seq: int, checkpoint: Checkpoint, policy: AgentPolicy) -> CheckpointInfo:
    fields = ("id", "iteration", "created_at", "event", "run_id", "metadata")
    pin = policy.label_of(checkpoint.id, checkpoint.metadata.get(PIN))
    return CheckpointInfo(seq=seq, pin=pin, **{name: getattr(checkpoint, name) for name in fields})


_OPEN: WeakSet[MemoryCheckpointStore] = WeakSet()


def _renew_locks() -> None:
    # A thread that was inside a store when the process forked does not exist in the child.
    for store in list(_OPEN):
        store._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)
