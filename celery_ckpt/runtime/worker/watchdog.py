"""The watchdog: brings back the runs of the dead. A thread in the parent of each worker.

It claims due agents (``CheckpointStore.claim_due``; each is given to one watchdog):

    somebody works on it                   look again when that lease ends
    this very process works on it          look again later, even if the lease has ended
    its process is known to be dead        take the lease over at once
    its lease has ended                    claim it: fence the old holder off, then bring the run back
    nobody has begun what was sent         send it again, more and more seldom; while messages wait in
                                           its queue it is taken to be one of them, for some minutes
    finished, but not delivered            send it: the delivery hands the recorded outcome to Celery
    nothing is open                        stop watching
    fetched by a worker that has died      put back on its queue (``fetched.py``)

Beside that it looks at the children of its own pool, so as not to wait for the lease of one that died,
nor for the pool to notice, which can take it five seconds in which the slot stays taken.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery import Celery
from celery.worker import state as worker_state

from celery_ckpt.errors import CheckpointError, LeaseHeld, StoreError
from celery_ckpt.records import AgentActivity, Lease, RunRecord, RunStatus, Schedule
from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.broker.envelope import agent_id_of
from celery_ckpt.runtime.broker.publisher import publish
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.owner import is_dead, is_known_dead
from celery_ckpt.runtime.worker.prefetched import PrefetchedMessages

logger = logging.getLogger(__name__)

_LOOK_EVERY = 0.5
#: How many agents are taken at once, and for how long nobody else is told of them.
_AT_ONCE, _HOLD = 50, 10.0
#: A claim lasts only until the run is sent.
_CLAIM_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 3600.0
_SOONEST = 0.05
#: How many agents it remembers to have sent again.
_REMEMBERED = 10_000
#: When the pauses have become so long, a run is sent again even if its queue is not empty.
_PATIENCE_WITH_QUEUES = 300.0


class Watchdog:
    """Looks after the agents of an app, until it is told to stop."""

    def __init__(self, app: Celery, tend_pool: Callable[[], object] | None) -> None:
        self._app = app
        #: Has the pool replace the children that died; ``None``: the pool has no children.
        self._tend_pool = tend_pool
        #: The children whose death was seen.
        self._dead_children: set[int] = set()
        self._fetched = PrefetchedMessages(app, AppContext.of(app).settings.lease_ttl)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="celery_ckpt-watchdog", daemon=True)
        #: How long to wait until a run is sent once more, by agent.
        self._pauses: dict[str, float] = {}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, when what is under way is done."""
        self._stop.set()

    def _work(self) -> None:
        unacked, said = Unacked(self._app.connection_for_write()), ""
        while not self._stop.wait(_LOOK_EVERY):
            try:
                self.look(unacked)
                said = ""
            except CheckpointError as error:
                # The store may be away, or closed to us; another look comes soon. Said once is enough.
                if str(error) != said:
                    logger.error("The watchdog cannot look after agents: %s", error)
                said = str(error)
            except Exception:
                # The broker may be away.
                logger.exception("The watchdog cannot look after agents")
        unacked.close()

    def look(self, unacked: Unacked) -> None:
        """Look once at everything that is due."""
        context = AppContext.of(self._app)
        for agent_id in self._agents_of_dead_children():
            self._attend(context, unacked, agent_id, None)
        for agent_id, due_at in context.store.claim_due(_AT_ONCE, _HOLD):
            self._attend(context, unacked, agent_id, due_at)
        # Last: the message of a run that had begun is back by now, and must not come twice.
        self._fetched.look(unacked)

    def _agents_of_dead_children(self) -> list[str]:
        if self._tend_pool is None:
            return []
        # One look at each child, whatever it has.
        children = {request.worker_pid: request for request in list(worker_state.active_requests)}
        dead = {pid for pid in children if pid and is_dead(pid)}
        # Only once each: its request stays active until the pool has noticed.
        new, self._dead_children = dead - self._dead_children, dead
        if new:
            self._tend_pool()
        return [agent_id_of(children[pid]._context) for pid in new]

    def _attend(self, context: AppContext, unacked: Unacked, agent_id: str, due_at: int | None) -> None:
        try:
            pause = self._looked_at(context, unacked, agent_id)
        except StoreError as error:
            logger.warning(phrases.AGENT_NOT_CHECKED, *phrases.identity_of_agent(agent_id), error)
            return
        if pause is not None:
            context.store.schedule(agent_id, pause)
        elif due_at is not None:
            self._pauses.pop(agent_id, None)
            _schedule_sweep(context, agent_id)
            context.store.unschedule({agent_id: due_at})

    def _looked_at(self, context: AppContext, unacked: Unacked, agent_id: str) -> float | None:
        """Do what is to be done; returns when to look again, ``None``: not at all."""
        if context.lease_renewer.is_renewing(agent_id):
            # This process is alive, however late it is with its renewals.
            return context.settings.lease_ttl
        activity = context.store.activity(agent_id)
        holder = activity.holder
        if holder is not None and not is_known_dead(holder.owner):
            self._pauses.pop(agent_id, None)
            return max(activity.seconds_left, _SOONEST)
        runs = _runs_to_requeue(activity)
        if not runs:
            return None
        if self._may_be_queued(unacked, agent_id, runs):
            return self._longer_pause(agent_id)
        if not self._is_claimed(context, agent_id, holder):
            return _FIRST_PAUSE
        for run in runs:
            self._requeue(unacked, run)
        return self._longer_pause(agent_id)

    def _may_be_queued(self, unacked: Unacked, agent_id: str, runs: list[RunRecord]) -> bool:
        # A copy of each at every look would make a long queue many times as long.
        is_early = self._pauses.get(agent_id, 0) < _PATIENCE_WITH_QUEUES
        are_queued = all(run.status is RunStatus.QUEUED and run.envelope for run in runs)
        return is_early and are_queued and all(unacked.is_backlogged(run.envelope) for run in runs)

    def _is_claimed(self, context: AppContext, agent_id: str, dead: Lease | None) -> bool:
        """Fence off whoever held the lease, and leave it free for the run that is sent."""
        try:
            lease = context.store.acquire(agent_id, context.owner, _CLAIM_SECONDS, over=dead)
        except LeaseHeld:
            return False
        return context.store.release(lease)

    def _requeue(self, unacked: Unacked, run: RunRecord) -> None:
        # Also the message of a run that went back to the queue, or has ended: nobody acknowledged it.
        if not unacked.restore(run.delivery):
            if not run.envelope:
                return
            publish(self._app, run.envelope, has_begun=run.attempts > 0)
        who = phrases.identity(run)
        if run.status is RunStatus.RUNNING:
            logger.warning(phrases.WORKER_LOST, *who, run.attempts)
        else:
            logger.warning(phrases.REQUEUED, *who, run.attempts, run.status)

    def _longer_pause(self, agent_id: str) -> float:
        if len(self._pauses) >= _REMEMBERED:
            self._pauses.clear()
        pause = self._pauses.get(agent_id, _FIRST_PAUSE)
        self._pauses[agent_id] = min(2 * pause, _LONGEST_PAUSE)
        return pause


def _schedule_sweep(context: AppContext, agent_id: str) -> None:
    """Whoever settled its last run may have died before he did.

    Not of an agent that was deleted: its name would stay there, for ever if nobody prunes.
    """
    [snapshot] = context.store.snapshots([agent_id])
    if snapshot.seen:
        context.store.schedule(agent_id, 0, Schedule.SWEEP)


def _runs_to_requeue(activity: AgentActivity) -> list[RunRecord]:
    """The active run or, if it is nobody's turn, whatever was never begun; and outcomes to deliver."""
    if activity.active is None:
        return activity.open
    return [run for run in activity.open if run.run_id == activity.active or run.status.is_final]
