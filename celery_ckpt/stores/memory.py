"""MemoryCheckpointStore: everything in this process. The reference model of the contract.

Checkpoints are immutable and share their messages, so keeping them as they are costs the new messages
only. One lock makes every method one atomic step.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakSet

from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.codec import is_same
from celery_ckpt.errors import AlreadyExists, RunNotFound
from celery_ckpt.models import Checkpoint
from celery_ckpt.names import checked_name
from celery_ckpt.records import CheckpointInfo, Lease, RunRecord, Step
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, CheckpointStore
from celery_ckpt.stores.leases import LeaseState
from celery_ckpt.stores.limits import encoded
from celery_ckpt.stores.limits import is_same as is_same_record
from celery_ckpt.stores.log.drafts import Parts


@dataclass
class _Agent:
    """All there is of one agent."""

    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    steps: dict[tuple[str, str], Step] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    lease: LeaseState = field(default_factory=LeaseState)
    seq: int = 0


class MemoryCheckpointStore(CheckpointStore):
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
        self._agents: dict[str, _Agent] = {}
        self._by_id: dict[str, Checkpoint] = {}
        _OPEN.add(self)

    def _known(self, agent_id: str) -> _Agent:
        """The agent, or a blank one that is not kept."""
        return self._agents.get(checked_name(agent_id)) or _Agent()

    def _writable(self, agent_id: str, lease: Lease | None) -> _Agent:
        agent = self._known(agent_id)
        agent.lease.refuse(agent_id, lease, self._clock.now())
        return self._agents.setdefault(agent_id, agent)

    def save(self, checkpoint: Checkpoint, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        Parts(checkpoint).refuse_too_large(checkpoint, self.max_checkpoint_bytes)
        with self._lock:
            if (stored := self._by_id.get(checkpoint.id)) is not None:
                if stored is not checkpoint and not is_same(stored, checkpoint):
                    what = f"Checkpoint {checkpoint.id}"
                    raise AlreadyExists(what=what, agent_id=stored.agent_id)
                return
            agent = self._writable(checkpoint.agent_id, lease)
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
            checkpoints = self._known(agent_id).checkpoints
            return [_info(seq, checkpoints[seq]) for seq in sorted(checkpoints, reverse=True)]

    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        """See ``CheckpointStore``."""
        for checkpoint_id in checkpoint_ids:
            checked_name(checkpoint_id, "A checkpoint id")
        with self._lock:
            checkpoints = self._known(agent_id).checkpoints
            going = set(checkpoint_ids)
            gone = [seq for seq, checkpoint in checkpoints.items() if checkpoint.id in going]
            for seq in gone:
                del self._by_id[checkpoints.pop(seq).id]
            return len(gone)

    def delete(self, agent_id: str) -> int:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._agents.pop(checked_name(agent_id), _Agent())
            for checkpoint in agent.checkpoints.values():
                del self._by_id[checkpoint.id]
            return len(agent.checkpoints)

    def agents(self) -> Iterator[str]:
        """See ``CheckpointStore``."""
        with self._lock:
            return iter(list(self._agents))

    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._known(agent_id)
            agent.lease = agent.lease.granted(agent_id, owner, ttl, self._clock.now(), over)
            self._agents[agent_id] = agent
            return agent.lease.lease(agent_id)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._known(lease.agent_id)
            agent.lease = agent.lease.renewed(lease, ttl, self._clock.now())
            return agent.lease.lease(lease.agent_id)

    def release(self, lease: Lease) -> bool:
        """See ``CheckpointStore``."""
        with self._lock:
            agent = self._known(lease.agent_id)
            if not agent.lease.is_(lease):
                return False
            agent.lease = agent.lease.released()
            return True

    def holder(self, agent_id: str) -> Lease | None:
        """See ``CheckpointStore``."""
        with self._lock:
            lease = self._known(agent_id).lease
            return lease.lease(agent_id) if lease.is_held(self._clock.now()) else None

    def record_step(self, step: Step, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        encoded(step, self.max_checkpoint_bytes)
        with self._lock:
            stored = self._known(step.agent_id).steps.get((step.run_id, step.key))
            if stored is not None and not is_same_record(stored, step):
                raise AlreadyExists(what=f"Step {step.key!r}", agent_id=step.agent_id)
            if stored is None:
                self._writable(step.agent_id, lease).steps[step.run_id, step.key] = step

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._lock:
            return [s for s in self._known(agent_id).steps.values() if s.run_id == run_id]

    def drop_steps(
        self,
        agent_id: str,
        run_id: str,
        *,
        first: int = 0,
        last: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._lock:
            agent = self._known(agent_id)
            agent.lease.refuse(agent_id, lease, self._clock.now())
            gone = [
                key
                for key, step in agent.steps.items()
                if step.run_id == run_id
                and first <= step.iteration
                and (last is None or step.iteration <= last)
            ]
            for key in gone:
                del agent.steps[key]
            return len(gone)

    def add_run(self, run: RunRecord) -> bool:
        """See ``CheckpointStore``."""
        encoded(run, self.max_checkpoint_bytes)
        with self._lock:
            agent = self._agents.setdefault(run.agent_id, _Agent())
            return is_same_record(agent.runs.setdefault(run.run_id, run), run)

    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        encoded(run, self.max_checkpoint_bytes)
        with self._lock:
            agent = self._known(run.agent_id)
            if run.run_id not in agent.runs:
                raise RunNotFound(agent_id=run.agent_id, run_id=run.run_id)
            agent.lease.refuse(run.agent_id, lease, self._clock.now())
            agent.runs[run.run_id] = run

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        with self._lock:
            return self._known(agent_id).runs.get(run_id)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """See ``CheckpointStore``."""
        with self._lock:
            return list(self._known(agent_id).runs.values())


def _info(seq: int, checkpoint: Checkpoint) -> CheckpointInfo:
    fields = ("id", "iteration", "created_at", "event", "run_id", "metadata")
    return CheckpointInfo(seq=seq, **{name: getattr(checkpoint, name) for name in fields})


_OPEN: WeakSet[MemoryCheckpointStore] = WeakSet()


def _renew_locks() -> None:
    # A thread that was inside a store when the process forked does not exist in the child.
    for store in list(_OPEN):
        store._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)
