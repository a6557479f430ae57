"""The store protocol: what every store promises. It is stated here and nowhere else.

A store keeps, for each agent: its checkpoints in the order in which they were saved, the recorded
steps of its runs, the records of its runs, its lease, its policy, when it last changed, when it is due
for the watchdog and for a sweep, and perhaps its event log. Of a deleted agent it keeps, for a while,
markers of runs whose
messages may arrive.

1.  A save is atomic and complete when it returns. After any crash the latest checkpoint is whole.
2.  What was saved and not removed loads back exactly, for any number of threads and processes.
3.  Order is the store's own sequence, never a clock's.
4.  Every write may be repeated. An equal write does nothing; a different one under the same id raises
    ``AlreadyExists``. A caller that lost the reply to a write sends the write again.
5.  A write with a lease raises ``LeaseLost`` unless that lease is the newest one given and was not
    released. An expired lease stays valid until a newer one is given. A write without a lease raises
    ``LeaseHeld`` while an unexpired lease exists. A refused write changes nothing.
6.  An error is never reported as "not found".
7.  Every method can be called from any thread, and after a fork.

Every method that takes an ``agent_id`` raises ``InvalidName`` (a ``ValueError``) for a name that is
empty or longer than 512 characters. Every method may raise ``StoreUnavailable``.

A store implements the abstract methods. The other methods have an implementation on top of them, which
a store may replace by a faster one. A store has the optional features that it declares in ``features``;
a method of a feature that it does not have raises ``FeatureMissing``:

    "rewrite"     ``rewrite``, which ``celery ckpt rekey`` needs
    "reschedule"  ``reschedule``, by which a renewal moves the watchdog's deadline. Without it, the
                  watchdog reads every agent at work once in the duration of a lease
    "log"         the event log (``celery_ckpt.event_log``): ``event_log``, ``note``, ``follow``,
                  ``stream``, and the parameters ``log``, ``worker``, ``call`` and ``calls``. Nothing
                  passes these parameters to a store without the feature

With the feature "log", a method that takes ``log`` appends these entries in the same atomic step as its
write, unless the write is refused or was done before. The store itself notes when an attempt starts,
that it was lost if it left no end, and when a run is settled. An entry of the kind ``ended`` counts
only for the attempt that has started and has not ended; without ``attempt``, it is about that one. With
an ``event_log_limit`` of 0, nothing is noted. A log that is damaged keeps nothing else from working.

Agents are on two schedules, apart from their data: ``Schedule.WATCHDOG`` and ``Schedule.SWEEP``. A
caller that claims an agent moves its due time forward in the same atomic step, so that each due agent
is given to one caller. Nothing else makes an agent due later, except ``reschedule``, and only from the
due time that its caller knows: an agent that was scheduled is checked by then. A process that sends one
run after the other to an agent does not put off the check that finds its worker dead.
"""

from __future__ import annotations

import builtins
import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.errors import (
    CheckpointError,
    FeatureMissing,
    RunNotFound,
    StoreError,
    StoreUnavailable,
)
from celery_ckpt.event_log import DEFAULT_EVENT_LOG, LogEntry
from celery_ckpt.json_values import microseconds
from celery_ckpt.names import checked_name
from celery_ckpt.page_cursor import PageCursor
from celery_ckpt.records import (
    IDLE,
    AgentActivity,
    AgentOutline,
    AgentPage,
    Change,
    CheckpointInfo,
    CurrentCall,
    Finding,
    Lease,
    MessagePage,
    RunOutline,
    RunRecord,
    RunStatus,
    Schedule,
    StartResult,
    Step,
    shortened,
)
from celery_ckpt.retention.report import PIN, AgentPolicy, AgentSnapshot, PrunePlan, PruneResult
from celery_ckpt.usage import Usage

#: Larger checkpoints, steps and run records are refused, unless the store was given another limit.
DEFAULT_MAX_CHECKPOINT_BYTES = 64_000_000

#: How many seconds the markers of a deletion last, unless the caller says otherwise: a week.
DEFAULT_REMEMBER = 604_800.0

#: What a write waits for before it returns: the store's own configuration, its disk, or a replica.
Durability = Literal["default", "fsync", "replica"]


#: The optional features of stores.
FEATURES = frozenset({"rewrite", "reschedule", "log"})


def checked_limit(limit: int | None, method: str) -> int | None:
    """Return the most items that a method may return. Raises ``ValueError`` if it is below 0."""
    if limit is not None and limit < 0:
        raise ValueError(f"{method}(limit={limit}): limit is 0 or more, or None")
    return limit


def checked_status(status: RunStatus | str | None) -> str | None:
    """Return the status by which agents are listed. Raises ``ValueError`` if there is none like it."""
    return status if status is None or status == IDLE else RunStatus(status).value


def checked_page_limit(limit: int) -> int:
    """Return the most agents of a page. Raises ``ValueError`` if it is below 1."""
    if limit < 1:
        raise ValueError(f"page(limit={limit}): limit is 1 or more")
    return limit


class CheckpointStore(ABC):
    """Keeps checkpoints, steps, run records and leases."""

    #: The optional features that the store has, of ``FEATURES``.
    features: frozenset[str] = frozenset()

    #: How many calls, replays and actions the event log of an agent keeps; 0: there is no event log.
    event_log_limit: int = DEFAULT_EVENT_LOG

    #: True for the store inside an ``EncryptedStore``, which sets it: this store returns encrypted
    #: records as they are. Any other store raises ``EncryptionKeyMissing`` instead of returning them.
    reads_encrypted: bool = False

    # -- checkpoints ---------------------------------------------------------------------------------

    @abstractmethod
    def save(
        self,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        run: RunRecord | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        """Save a checkpoint as the agent's latest.

        With ``run``, replace that run's record in the same atomic step. If this checkpoint was saved
        before, nothing is replaced, the run included.

        Raises:
            RunNotFound: the run was never added.
            AlreadyExists: a checkpoint with this id and another content exists.
            LeaseLost, LeaseHeld: see 5.
            CheckpointTooLarge: the checkpoint exceeds the limit.
        """

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        """Return the agent's latest checkpoint, or ``None`` if it has no checkpoint.

        Raises:
            CheckpointDamaged: the latest checkpoint cannot be read.
        """
        return next(iter(self.list(agent_id, limit=1)), None)

    @abstractmethod
    def load(self, checkpoint_id: str) -> Checkpoint | None:
        """Return a checkpoint of any agent by its id.

        Raises:
            CheckpointDamaged: the checkpoint exists and cannot be read.
        """

    @abstractmethod
    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        """Return the agent's checkpoints, newest first, at most ``limit`` of them.

        Raises:
            CheckpointDamaged: one of them cannot be read; the error's ``readable`` has the others.
        """

    @abstractmethod
    def history(
        self, agent_id: str, *, limit: int | None = None, before: int | None = None
    ) -> builtins.list[CheckpointInfo]:
        """Return the outlines of the agent's checkpoints, newest first. Reads no message.

        At most ``limit`` are returned, and only checkpoints whose ``seq`` is below ``before``: the
        ``seq`` of the last one of a page continues with the next page.
        """

    def messages(
        self, checkpoint_id: str, start: int = 0, stop: int | None = None
    ) -> MessagePage | None:
        """Return the messages ``start`` to ``stop - 1`` of a checkpoint of any agent.

        Numbers below 0 count from the end, as in a slice. A store that can reads no other message, so
        the page is not checked against the digest of the checkpoint. ``load`` checks it.

        Returns:
            ``None`` if there is no checkpoint with this id.

        Raises:
            CheckpointDamaged: the checkpoint exists, and one of these messages cannot be read.
        """
        found = self.load(checkpoint_id)
        if found is None:
            return None
        messages = found.conversation.messages
        first, last, _ = slice(start, stop).indices(len(messages))
        page = messages[first:last]
        return MessagePage(found.agent_id, checkpoint_id, len(messages), first, page)

    @abstractmethod
    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        """Remove these checkpoints and what only they needed. Return how many existed."""

    def prune(self, agent_id: str, keep: int) -> int:
        """Remove all but the newest ``keep`` checkpoints. Return how many were removed."""
        if keep < 0:
            raise ValueError(f"prune(keep={keep}): keep is 0 or more")
        return self.remove(agent_id, self._ids_newest_first(agent_id)[keep:])

    def _ids_newest_first(self, agent_id: str) -> builtins.list[str]:
        return [info.id for info in self.history(agent_id)]

    @abstractmethod
    def delete(self, agent_id: str, *, remember: float = DEFAULT_REMEMBER) -> int:
        """Delete the agent with all it has. Return how many checkpoints were deleted.

        For each run whose message may still arrive, because it is open or was cancelled, a marker is
        left for ``remember`` seconds: a digest of the run's id. It distinguishes a run that was deleted
        from one whose record was lost (see ``start_run``). Nothing else is left. With 0, no marker is.

        Raises:
            ValueError: ``remember`` is negative.
        """

    @abstractmethod
    def was_deleted(self, run_id: str) -> bool:
        """Return True if a deletion has left a marker for the run, which has not expired."""

    @abstractmethod
    def agents(self) -> Iterator[str]:
        """Yield the name of every agent once, in no particular order. Reads page by page."""

    def page(
        self,
        status: RunStatus | str | None = None,
        *,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> AgentPage:
        """Return agents that have a run or a checkpoint, the most recently changed first.

        With ``status``, only agents whose active run, or else last run, has that status; ``"idle"`` for
        agents that never had a run. With ``prefix``, only agents whose names begin with it. ``after``
        continues after an earlier page. An agent that changes while pages are read may
        move. Any other agent is returned exactly once.

        An agent changes when it is created (by a lease, a save, a step or a run), and when a run is
        added, started, blocked, released, ended, settled or cancelled; a save or a step alone does not
        change it. This implementation reads every agent, and takes the time from the agent's newest
        record: the end or the creation of that run, or the latest checkpoint if there is no run.

        Raises:
            ValueError: there is no such status, ``limit`` is below 1, or no page returned ``after``.
        """
        wanted, size = checked_status(status), checked_page_limit(limit)
        last = None if after is None else PageCursor.parse(after)
        unreadable: dict[str, StoreError] = {}

        def rows() -> Iterator[tuple[PageCursor, AgentOutline]]:
            for agent_id in (name for name in self.agents() if name.startswith(prefix)):
                try:
                    row = self.outline(agent_id)
                except StoreUnavailable:
                    raise
                except StoreError as error:
                    if last is None:
                        unreadable[agent_id] = error
                    continue
                if row is None or wanted not in (None, row.status or IDLE):
                    continue
                place = PageCursor(microseconds(row.changed_at) if row.changed_at else 0, agent_id)
                if last is None or place < last:
                    yield place, row

        # The places differ, so rows are never compared.
        found = heapq.nlargest(size + 1, rows(), key=lambda placed: placed[0])
        cursors = [str(place) for place, _ in found[:size]]
        more = cursors[-1] if len(found) > size else None
        return AgentPage([row for _, row in found[:size]], more, cursors, unreadable)

    def outline(self, agent_id: str) -> AgentOutline | None:
        """Return an agent in one row, or ``None`` if it has neither a run nor a checkpoint.

        A store that can reads neither the envelope nor the result of a run, no message, and of the
        checkpoints only the latest.
        """
        activity, history = self.activity(agent_id), self.history(agent_id)
        runs = self.run_outlines(agent_id)
        run = next((run for run in runs if run.run_id == activity.active), next(iter(runs), None))
        if run is None and not history:
            return None
        latest = history[0] if history else None
        owner = activity.holder.owner if activity.holder else None
        return outline_of(
            agent_id,
            run,
            blocked=sum(run is None or one.run_id != run.run_id for one in activity.open),
            owner=owner,
            iteration=latest.iteration if latest else None,
            checkpointed_at=latest.created_at if latest else None,
            checkpoints=len(history),
            changed_at=run.counts_as_ended_at if run else history[0].created_at,
        )

    # -- leases --------------------------------------------------------------------------------------

    @abstractmethod
    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        """Take the right to write for ``ttl`` seconds, with a token one larger than any before.

        ``over`` is an unexpired lease that may be taken over because its owner is known to be dead.
        It is ignored if another lease is held by now.

        Raises:
            LeaseHeld: an unexpired lease exists, even one of the same owner.
        """

    @abstractmethod
    def renew(self, lease: Lease, ttl: float, *, call: CurrentCall | None = None) -> Lease:
        """Extend the lease to ``ttl`` seconds from now. Raises ``LeaseLost`` if it was lost.

        ``call`` is what the attempt is calling now (see ``AgentActivity``).
        """

    def renew_many(
        self, leases: Sequence[Lease], ttl: float, *, calls: Sequence[CurrentCall | None] = ()
    ) -> builtins.list[Lease | StoreError]:
        """Extend leases of different agents. Return each as it is now, or why it was not extended.

        ``calls`` has what the attempt of each lease is calling now; empty: it is not known.

        A lease that was lost (``LeaseLost``) or an agent that cannot be read (another ``StoreError``)
        does not keep the other leases from being extended.

        Raises:
            StoreUnavailable: the store does not answer. Some leases may have been extended.
        """
        known = calls or [None] * len(leases)
        return [self._renewed(lease, ttl, call) for lease, call in zip(leases, known, strict=True)]

    def _renewed(self, lease: Lease, ttl: float, call: CurrentCall | None) -> Lease | StoreError:
        try:
            return self.renew(lease, ttl, call=call) if call else self.renew(lease, ttl)
        except StoreUnavailable:
            raise
        except StoreError as error:
            return error

    @abstractmethod
    def release(
        self,
        lease: Lease,
        *,
        run: RunRecord | None = None,
        due_in: float | None = None,
        log: Sequence[LogEntry] = (),
    ) -> bool:
        """Release the lease. Return False, and change nothing, if it was lost or released before.

        With ``run``, replace that run's record in the same atomic step. With ``due_in``, first put the
        agent on the watchdog's schedule in that many seconds.

        Raises:
            RunNotFound: the run was never added.
        """

    def holder(self, agent_id: str) -> Lease | None:
        """Return the agent's unexpired lease, if there is one."""
        return self.activity(agent_id).holder

    # -- steps ---------------------------------------------------------------------------------------

    @abstractmethod
    def record_step(
        self,
        step: Step,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        """Record a step's result.

        With ``paid``, add it to the ``usage`` of the step's run in the same atomic step, if the step is
        new and the run was added. No other method changes the usage of a run.

        Raises:
            AlreadyExists: the run has a step with this key and another content.
            LeaseLost, LeaseHeld: see 5.
        """

    def record_and_save(
        self,
        step: Step,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> CheckpointError | None:
        """Record a step's result, then save a checkpoint of the same agent.

        The step is recorded whatever becomes of the checkpoint. A store need not do both in one atomic
        step: after a crash, the step may be recorded and the checkpoint not saved.

        Returns:
            Why the checkpoint was not saved: what ``save`` raises. ``None`` if it was saved.

        Raises:
            AlreadyExists, LeaseLost, LeaseHeld: see ``record_step``; nothing was saved.
        """
        self.record_step(step, lease, paid=paid, **({"log": log} if log else {}))
        try:
            self.save(checkpoint, lease)
        except CheckpointError as error:
            return error
        return None

    @abstractmethod
    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """Return the run's recorded steps in the order in which they were recorded.

        A store may read page by page. The holder of the lease reads all of them; without it, a step
        that is recorded or dropped at the same time may be missing or not.
        """

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
        """Drop the run's steps of iterations ``first`` to ``last`` (``None``: all later ones).

        A store may drop them in parts. After a crash, some of them may be left.
        """

    # -- runs ----------------------------------------------------------------------------------------

    @abstractmethod
    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        """Add a run's record unless the run has one. Needs no lease.

        With ``due_in``, first put the agent on the watchdog's schedule in that many seconds.

        Returns:
            True if the stored record equals ``run``, False if another record exists.
        """

    @abstractmethod
    def update_run(
        self, run: RunRecord, lease: Lease | None = None, *, log: Sequence[LogEntry] = ()
    ) -> None:
        """Replace a run's record.

        Raises:
            RunNotFound: the run was never added.
            LeaseLost, LeaseHeld: see 5.
        """

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """Return a run's record, or ``None`` if the run was never added."""
        checked_name(run_id, "A run_id")
        return next((run for run in self.runs(agent_id) if run.run_id == run_id), None)

    @abstractmethod
    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """Return the records of all runs of the agent in the order in which they were sent.

        A run that is opened again (``update_run`` of a settled one) counts as sent at that time. A
        store may read page by page: a run that is added, changed or deleted at the same time may be
        returned as before or as after.
        """

    def last_run(self, agent_id: str) -> RunRecord | None:
        """Return the record of the run that was sent last, or ``None`` if the agent has no run."""
        return next(reversed(self.runs(agent_id)), None)

    def run_outlines(
        self, agent_id: str, *, limit: int | None = None, before: str | None = None
    ) -> builtins.list[RunOutline]:
        """Return the runs of the agent without envelopes and results, the last added run first.

        At most ``limit`` are returned, and only runs that were added before the run ``before``: the
        ``run_id`` of the last one of a page continues with the next page. A store that can reads no
        envelope and no result.

        Raises:
            RunNotFound: the agent has no run ``before``.
        """
        checked_limit(limit, "run_outlines")
        return outlines_of(agent_id, self.runs(agent_id), limit, before)

    # -- turns ---------------------------------------------------------------------------------------

    @abstractmethod
    def start_run(
        self,
        run: RunRecord,
        owner: str,
        ttl: float,
        *,
        over: Lease | None = None,
        recorded: bool = False,
        worker: str = "",
    ) -> StartResult:
        """Begin an attempt of a delivered run, if it is the run's turn.

        An unknown run is added as given. With ``recorded``, the caller knows that the run was added
        before. If the run is unknown and ``was_deleted``, nothing is added, and the result says
        ``is_deleted``. An attempt takes the lease as ``acquire`` does, and is counted. In every case
        ``run.delivery`` is stored, and with an attempt ``run.trace``. A run that has ended but is not
        settled gets the lease and is not changed, so that its outcome can be delivered.

        An agent has one active run: the run that has the turn, until it is settled. Any other run
        becomes ``BLOCKED`` and gets no lease. The turn belongs to the run that was sent first among the
        open runs that are due (``RunRecord.may_have_turn``): not before its ``eta``, not after it has
        expired, ended or was passed over. If no run is active and an older run than the delivered one
        is due, the older one becomes the active run, ``QUEUED``, and is returned as ``next``: it must
        be published. If the active run has not begun and is younger than the delivered one, the
        delivered one takes the turn, and the other one becomes ``BLOCKED``. The decision does not read
        all open runs. If many runs become due at the same time, a store may consider them some hundred
        at a time, by their ``eta``.

        Before anything else the agent is put on the watchdog's schedule, ``ttl`` seconds from now, as
        ``schedule`` does. If an attempt begins, the agent is due when its lease ends, also if it was
        due earlier: the attempt is what the watchdog would look for.
        ``worker`` is the node name of the worker, for the event log.

        Raises:
            LeaseHeld: an unexpired lease exists.
        """

    @abstractmethod
    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        """Record that Celery has the run's outcome, and release the lease.

        Drops the steps of a run that succeeded. A failed run keeps them, because it can be resumed. A
        store may drop many steps in parts, after the run is settled; ``findings`` repairs what a crash
        leaves.

        Returns:
            The agent's next run, which is now the active one and must be published: the run to which
            the turn belongs (see ``start_run``), if it is ``BLOCKED``, or if a younger run was blocked
            before. ``None`` if its message can be expected to arrive: it has never been delivered, and
            neither has a younger one. A run that is not the active one needs no lease.

        Raises:
            RunNotFound: the run was never added.
            LeaseLost, LeaseHeld: see 5; nothing has changed.
        """

    @abstractmethod
    def pass_turn(self, agent_id: str, run_id: str, waited: float) -> RunRecord | None:
        """Give the turn of the active run to the next one, because no worker begins the active one.

        Nothing changes unless the run is the active one, no attempt of it has ever begun, it was given
        the turn at least ``waited`` seconds ago, and another run is due. Then it is ``passed_over``:
        until it is delivered, it gets no other turn, and blocks no other run.

        Returns:
            The run that is the active one now and must be published, or ``None``.
        """

    @abstractmethod
    def cancel_run(
        self, agent_id: str, run_id: str, owner: str, ttl: float, *, log: Sequence[LogEntry] = ()
    ) -> Lease | None:
        """Cancel a run that has not ended, and fence off the attempt that works on it.

        Notes that the attempt was cancelled, unless ``log`` says how it ended.

        Returns:
            A lease to settle the run with, or ``None`` if the run is not the active one.

        Raises:
            RunNotFound: the run was never added.
            RunOver: the run has ended.
        """

    @abstractmethod
    def activity(self, agent_id: str) -> AgentActivity:
        """Return open runs of the agent, their number, its active run and its lease."""

    # -- the event log -------------------------------------------------------------------------------

    def event_log(
        self, agent_id: str, *, after: int | None = None, limit: int | None = None
    ) -> builtins.list[LogEntry]:
        """Return entries of the agent's event log in order, at most ``limit``. Needs no right to write.

        Without ``after``, these are the newest ones. With ``after``, a cursor, they are the first ones
        after it; where entries are no longer kept, an entry of the kind ``gap`` says how many. An entry
        that cannot be read is returned as one of the kind ``damaged``.

        Raises:
            FeatureMissing: the store does not have the feature "log".
        """
        raise FeatureMissing(store=type(self).__name__, feature="log")

    def note(self, agent_id: str, log: Sequence[LogEntry], *, copied: bool = False) -> bool:
        """Append entries that belong to no write. Needs no lease. False if there is no such agent.

        With ``copied``, they are entries of a log, and all of them are appended: also the ends of
        attempts that this store knows nothing of.

        Raises:
            FeatureMissing: the store does not have the feature "log".
        """
        raise FeatureMissing(store=type(self).__name__, feature="log")

    def follow(self, agent_id: str, seconds: float) -> int:
        """Have live entries written for so many seconds from now. Return the cursor of the last entry.

        A follower calls it again before that time is over. Live entries are checkpoints and what
        ``stream`` appends. They are deleted ``LIVE_SECONDS`` after the last call. An agent that does
        not exist is not created; its cursor is 0.

        Raises:
            FeatureMissing: the store does not have the feature "log".
        """
        raise FeatureMissing(store=type(self).__name__, feature="log")

    def stream(self, lease: Lease, log: Sequence[LogEntry]) -> bool:
        """Append live entries. Return False, and append nothing, if the agent has no follower.

        Raises:
            LeaseLost: see 5.
            FeatureMissing: the store does not have the feature "log".
        """
        raise FeatureMissing(store=type(self).__name__, feature="log")

    # -- schedules: when the watchdog or a sweep looks at an agent -----------------------------------

    @abstractmethod
    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        """Make the agent due ``after`` seconds from now, or earlier if it is due earlier already.

        Returns:
            Its due time, an opaque number. It differs from the one before, so that a caller that has
            read that one neither unschedules the agent nor puts it off.
        """

    @abstractmethod
    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        """Take agents off the schedule unless their due time has changed. Return how many."""

    def reschedule(
        self, due_times: Mapping[str, int], after: float, on: Schedule = Schedule.WATCHDOG
    ) -> dict[str, int]:
        """Make agents due ``after`` seconds from now unless their due time has changed.

        For each agent, the comparison and the change are one atomic step.

        Returns:
            The new due times of the agents that were rescheduled.

        Raises:
            FeatureMissing: the store does not have the feature "reschedule".
        """
        raise FeatureMissing(store=type(self).__name__, feature="reschedule")

    @abstractmethod
    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """Claim up to ``limit`` due agents. Return each with its new due time, ``hold`` seconds ahead.

        Each agent is given to one caller. It is due again after ``hold`` seconds unless it is scheduled
        otherwise. On ``Schedule.SWEEP``, every agent is due that was saved, settled or given a policy
        since a sweep finished with it (``apply``).
        """

    @abstractmethod
    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        """Return the number of due agents."""

    def count_watchdogs(self, name: str, seconds: float) -> int:
        """Note that a watchdog works on this store for so many seconds. Return how many do.

        Watchdogs check for due agents the more seldom, the more of them there are. A store for which
        that makes no difference returns 1.
        """
        return 1

    # -- policies and pruning ------------------------------------------------------------------------

    @abstractmethod
    def policy(self, agent_id: str) -> AgentPolicy:
        """Return the agent's policy: its pins and its own limits."""

    @abstractmethod
    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        """Replace the agent's policy if it still equals ``before``.

        Returns:
            False, and nothing changes, if the policy is another one or the agent does not exist.
        """

    def pin(self, checkpoint_id: str, label: str | None) -> bool:
        """Pin a checkpoint of any agent under a label; ``None`` removes the pin.

        Returns:
            True if the checkpoint exists.

        Raises:
            InvalidName: the label is empty or too long.
        """
        label = None if label is None else checked_name(label, "A pin's label")
        while (checkpoint := self.load(checkpoint_id)) is not None:
            before = self.policy(checkpoint.agent_id)
            after = before.labelled(checkpoint_id, label, checkpoint.metadata.get(PIN))
            if before == after or self.set_policy(checkpoint.agent_id, before, after):
                # A sweep may have removed it before the pin was stored; later ones cannot.
                return self.load(checkpoint_id) is not None
        return False

    @abstractmethod
    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        """Return what a sweep needs to know of each of these agents, in this order."""

    @abstractmethod
    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        """Apply the plans of a sweep, agent by agent. Return what was deleted of each.

        Nothing of an agent is deleted if its policy has changed since the snapshot. An agent is deleted
        as a whole, or loses its latest checkpoint, only if nothing about it has changed. Old runs
        (``retention.policy.old_runs``) are identified in the same atomic step that deletes them.
        An agent that has changed is due again after ``plan.retry`` seconds, any other after
        ``plan.again`` seconds or when it changes.
        """

    # -- maintenance ---------------------------------------------------------------------------------

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        """Replace everything an agent has by what ``change`` returns, in one atomic step.

        ``change`` returns ``None`` to leave the agent as it is. The lease, the policy and the order are
        kept. Checkpoints and runs keep their ids. Steps may be left out; the others keep their runs and
        have distinct keys within a run. This is the only method that alters saved data. Rekeying
        uses it.

        Returns:
            False, and nothing has changed, if another write changed the agent at the same time.

        Raises:
            CheckpointDamaged: one of the checkpoints cannot be read.
            LeaseLost, LeaseHeld: as for any write, if there is something to write.
            FeatureMissing: the store does not have the feature "rewrite".
        """
        raise FeatureMissing(store=type(self).__name__, feature="rewrite")

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        """Yield leftovers and damage; with ``repair``, repair what can be repaired.

        Reads the whole store. Does not touch what is being written.
        """
        return iter(())

    def risks(self) -> builtins.list[str]:
        """Return why this store, as configured, can lose saved data or lets others change it.

        Raises:
            ConfigurationError: the store cannot be as durable as it was asked to be.
            StoreUnavailable: the store does not answer.
        """
        return []

    def close(self) -> None:  # noqa: B027  (a store may have nothing to close)
        """Close connections and files. The store must not be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def outlines_of(
    agent_id: str, runs: Sequence[RunRecord], limit: int | None, before: str | None
) -> list[RunOutline]:
    """Return what ``run_outlines`` promises of runs in the order in which they were added."""
    ids = [run.run_id for run in runs]
    if before is not None and before not in ids:
        raise RunNotFound(agent_id=agent_id, run_id=before)
    end = len(ids) if before is None else ids.index(before)
    return [run.outline for run in runs[:end][::-1][:limit]]


def outline_of(agent_id: str, run: RunOutline | None, **facts: Any) -> AgentOutline:
    """Return the outline of an agent with this active or last run. ``facts`` are the other fields."""
    if run is None:
        return AgentOutline(agent_id=agent_id, **facts)
    return AgentOutline(
        agent_id=agent_id,
        status=run.status,
        run_id=run.run_id,
        task=run.task,
        attempts=run.attempts,
        retries=run.retries,
        error=shortened(run.error),
        usage=run.usage,
        **facts,
    )
