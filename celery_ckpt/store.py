"""The store: what every one of them promises. Said here, and nowhere else (``upkeep.py`` has the part
for those who look after it).

A store keeps, for each agent, its checkpoints in the order in which they were saved, the recorded
steps of its runs, the records of its runs, and who may write for it now.

1.  A save is atomic and complete when it returns. After any crash the latest checkpoint is whole.
2.  Whatever was saved and not pruned loads back exactly, however many threads and processes save.
3.  Order is the store's own sequence, never a clock's.
4.  Every write may be repeated: an equal one again does nothing, a different one under the same id is
    refused with ``AlreadyExists``. So a write whose reply was lost may simply be sent again.
5.  With a lease, a write is refused (``LeaseLost``) unless that very lease is the newest one given and
    not released; that it has expired does not matter until a newer one is given. Without a lease, a
    write is refused (``LeaseHeld``) while somebody holds an unexpired one. A refused write changes
    nothing.
6.  An error is never answered as "nothing there".
7.  Every method may be called from any thread, and after a fork.

Every method that takes an ``agent_id`` raises ``InvalidName`` (a ``ValueError``) for one that is empty
or over 512 characters, and any of them may raise ``StoreUnavailable``.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.records import CheckpointInfo, Lease, RunRecord, Standing, Start, Step
from celery_ckpt.upkeep import Upkeep
from celery_ckpt.usage import Usage

#: Checkpoints, steps and run records over this are refused, unless a store is told otherwise.
DEFAULT_MAX_CHECKPOINT_BYTES = 64_000_000

#: What a write waits for before it returns: as the store is set up, the disk, or another machine.
Durability = Literal["default", "fsync", "replica"]


class CheckpointStore(Upkeep):
    """Keeps checkpoints, steps, run records and leases."""

    # -- checkpoints ---------------------------------------------------------------------------------

    @abstractmethod
    def save(
        self, checkpoint: Checkpoint, lease: Lease | None = None, *, run: RunRecord | None = None
    ) -> None:
        """Keep a checkpoint; it is the agent's latest from now on.

        With ``run``, that run's record is replaced in the same atomic step. If the checkpoint was
        saved before, nothing is replaced: not the run either.

        Raises:
            RunNotFound: the run was never added.
            AlreadyExists: its id was saved with another content.
            LeaseLost, LeaseHeld: see 5.
            CheckpointTooLarge: it is over the limit.
        """

    @abstractmethod
    def load_latest(self, agent_id: str) -> Checkpoint | None:
        """The agent's latest checkpoint; ``None`` only if it has none.

        Raises:
            CheckpointDamaged: there is one, and it cannot be read.
        """

    @abstractmethod
    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        """The agent's checkpoints, newest first; at most ``limit`` of them.

        Raises:
            CheckpointDamaged: one of them cannot be read; ``readable`` of the error has the others.
        """

    @abstractmethod
    def history(self, agent_id: str) -> builtins.list[CheckpointInfo]:
        """The outlines of the agent's checkpoints, newest first, without reading any message."""

    @abstractmethod
    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        """Drop these checkpoints and what only they needed; returns how many of them were there."""

    def prune(self, agent_id: str, keep: int) -> int:
        """Drop all but the newest ``keep`` checkpoints; returns how many went. 0 keeps none."""
        if keep < 0:
            raise ValueError(f"prune(keep={keep}): keep is 0 or more")
        return self.remove(agent_id, self._ids_newest_first(agent_id)[keep:])

    def _ids_newest_first(self, agent_id: str) -> builtins.list[str]:
        return [info.id for info in self.history(agent_id)]

    @abstractmethod
    def delete(self, agent_id: str) -> int:
        """Forget the agent: checkpoints, steps, runs, lease. Returns how many checkpoints went."""

    @abstractmethod
    def agents(self) -> Iterator[str]:
        """The names of all agents with anything stored, each once, read page by page, in no order."""

    # -- leases --------------------------------------------------------------------------------------

    @abstractmethod
    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        """Take the right to write for ``ttl`` seconds, with a token one larger than any before.

        ``over`` names a lease that may be taken over although it has not expired, because its owner
        is known to be dead; it is ignored if another one is held by now.

        Raises:
            LeaseHeld: somebody holds an unexpired lease, be it the same owner.
        """

    @abstractmethod
    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Hold the lease for ``ttl`` seconds from now. Raises ``LeaseLost`` if it is over."""

    @abstractmethod
    def release(
        self, lease: Lease, *, run: RunRecord | None = None, unclaimed: float | None = None
    ) -> bool:
        """Give the lease up. False, and nothing changes, if it was over already.

        With ``run``, that run's record is replaced in the same atomic step. With ``unclaimed``, the
        agent is watched first: ``due`` names it so many seconds from now.

        Raises:
            RunNotFound: the run was never added.
        """

    @abstractmethod
    def holder(self, agent_id: str) -> Lease | None:
        """The unexpired lease of the agent, if somebody holds one."""

    # -- steps ---------------------------------------------------------------------------------------

    @abstractmethod
    def record_step(self, step: Step, lease: Lease | None = None, *, paid: Usage | None = None) -> None:
        """Keep a step's result.

        With ``paid``, the ``usage`` of its run is raised by that in the same atomic step, if the step
        is recorded now and the run was added. No other method changes the usage of a known run.

        Raises:
            AlreadyExists: the run has a step of that key with another content.
            LeaseLost, LeaseHeld: see 5.
        """

    @abstractmethod
    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """The run's recorded steps in the order in which they were recorded."""

    @abstractmethod
    def drop_steps(
        self,
        agent_id: str,
        run_id: str,
        *,
        first: int = 0,
        last: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        """Drop the run's steps of iterations ``first`` to ``last`` (``None``: all later ones)."""

    # -- runs ----------------------------------------------------------------------------------------

    @abstractmethod
    def add_run(self, run: RunRecord, *, unclaimed: float | None = None) -> bool:
        """Keep a run's record if there is none of that run yet; needs no lease.

        With ``unclaimed``, the agent is watched first: ``due`` names it so many seconds from now.

        Returns whether the record is kept as given: False if another one was there.
        """

    @abstractmethod
    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """Replace a run's record.

        Raises:
            RunNotFound: the run was never added.
            LeaseLost, LeaseHeld: see 5.
        """

    @abstractmethod
    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """A run's record."""

    @abstractmethod
    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """The records of all runs of the agent, in the order in which they were added."""

    # -- whose turn it is ----------------------------------------------------------------------------

    @abstractmethod
    def start_run(self, run: RunRecord, owner: str, ttl: float, *, over: Lease | None = None) -> Start:
        """A run was delivered to a worker: begin an attempt, if it is the run's turn.

        A run that is not known is added as given. The first run to start is the agent's active one
        until it is settled; another one waits (``WAITING``, no lease). An attempt takes the lease,
        as ``acquire`` does, and is counted. Either way ``run.delivery`` is noted. A run that is
        finished but not settled gets the lease and is not changed, so that its outcome can be
        delivered.

        The agent is watched first, whatever comes of it: ``due`` names it ``ttl`` seconds from now.

        Raises:
            LeaseHeld: somebody works for the agent now.
        """

    @abstractmethod
    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        """Celery has the run's outcome: mark that and give up the lease.

        The steps of a run that succeeded are dropped; one that failed may be resumed by hand.

        Returns the agent's next run, which is to be sent: the first of those that wait; it is the
        active one from now on. Needs no lease for a run that is not the active one.

        Raises:
            RunNotFound: the run was never added.
            LeaseLost, LeaseHeld: see 5; nothing has changed.
        """

    @abstractmethod
    def cancel_run(self, agent_id: str, run_id: str, owner: str, ttl: float) -> Lease | None:
        """Put an end to a run that has none yet; whoever works on it is fenced off.

        Returns a lease with which to settle it; ``None`` if another run is the active one, or none.

        Raises:
            RunNotFound: the run was never added.
            RunOver: it has ended.
        """

    @abstractmethod
    def standing(self, agent_id: str) -> Standing:
        """The agent's open runs, the active one, and who holds the lease."""

    # -- the end -------------------------------------------------------------------------------------

    def risks(self) -> builtins.list[str]:
        """Why this store, as it is set up, can lose what was saved, or lets others change it; for a
        person to read.

        Raises:
            ConfigurationError: it cannot be as durable as it is to be.
            StoreUnavailable: it does not answer.
        """
        return []

    def close(self) -> None:
        """Give up connections and files. The store must not be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
