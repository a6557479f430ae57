"""The watchdog: a thread in the parent of each worker that requeues the runs of dead workers.

It claims due agents (``CheckpointStore.claim_due``; each is given to one watchdog), the more seldom,
the more watchdogs there are (``poll_interval.py``):

    a live process has the lease              check again when that lease expires
    this process has the lease                leave it to the renewals, even if the lease has expired
    the lease's process is known to be dead   take the lease over at once
    the lease has expired                     acquire it, which fences off the old holder; requeue
    published, and no worker has begun it     requeue it at growing intervals; while its queue is not
                                              empty, assume for some minutes that it is in there
    given the turn, and no worker has begun   requeue it, as above; after two durations of a lease, pass
    it                                        it over: the next one in line gets the turn, is published
    not due yet (ETA)                         check again half a minute after that time
    ended, but Celery has no outcome          requeue it: the delivery gives Celery the outcome
    no run is open                            unschedule the agent
    prefetched by a worker that has died      put the message back on its queue (``prefetched.py``)

It also checks the children of its own pool, so as not to wait for the lease of a dead child, nor for
the pool to notice: that can take five seconds, in which the slot stays occupied. That needs no store.

An agent that it has claimed is put off only if no other process has scheduled it since.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime

from celery import Celery
from celery.worker import state as worker_state

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import CheckpointError, LeaseHeld, StoreError
from celery_ckpt.records import AgentActivity, RunRecord, RunStatus, Schedule
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.attempt.settlement import publish_next
from celery_ckpt.runtime.broker.envelope import agent_id_of
from celery_ckpt.runtime.broker.publisher import publish
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.owner import is_dead, is_known_dead
from celery_ckpt.runtime.worker.poll_interval import poll_interval, randomized
from celery_ckpt.runtime.worker.prefetched import PrefetchedMessages

logger = logging.getLogger(__name__)

#: Seconds between two checks of the children.
_CHECK_EVERY = 0.5
#: Seconds between two counts of the watchdogs. One that was not counted for longer has ended.
_COUNT_EVERY, _COUNTS_FOR = 30.0, 75.0
#: How many agents are claimed at once, and after how many seconds another watchdog can claim them.
_AT_ONCE, _CLAIM_LAPSES_AFTER = 50, 10.0
#: The duration of the lease that fences off the old holder; it is released at once.
_LEASE_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 3600.0
_SOONEST = 0.05
#: A run with one of these statuses begins, or begins again, at its ETA.
_NOT_BEGUN = (RunStatus.QUEUED, RunStatus.BLOCKED)
#: For how many agents it remembers the pause.
_REMEMBERED = 10_000
#: How long after its ETA a run is checked.
_AFTER_ETA = 30.0
#: After how many durations of a lease a run is passed over that has the turn and does not begin.
_PATIENCE = 2.0
#: With longer pauses, a run is requeued even if its queue is not empty.
_LONGEST_QUEUE_PAUSE = 300.0


class Watchdog:
    """Requeues the lost runs of an app, until it is stopped."""

    def __init__(self, app: Celery, maintain_pool: Callable[[], object] | None) -> None:
        self._app = app
        #: Has the pool replace dead children; ``None``: the pool does not have child processes.
        self._maintain_pool = maintain_pool
        #: The dead children that were seen.
        self._dead_children: set[int] = set()
        self._prefetched = PrefetchedMessages(app, AppContext.of(app).settings.lease_ttl)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="celery_ckpt-watchdog", daemon=True)
        #: How many seconds to wait until a run is requeued again, by agent.
        self._pauses: dict[str, float] = {}
        #: When the next due agents are claimed, and the watchdogs counted again.
        self._next_poll = self._next_count = 0.0
        #: Seconds between two claims.
        self._interval = poll_interval(1)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the present check."""
        self._stop.set()

    def _work(self) -> None:
        unacked, logged = Unacked(self._app.connection_for_write()), ""
        self._next_poll = time.monotonic() + randomized(_CHECK_EVERY)
        while not self._stop.wait(min(_CHECK_EVERY, max(0.0, self._next_poll - time.monotonic()))):
            try:
                if self._is_time_to_poll():
                    self.check(unacked)
                    self._count_watchdogs()
                    logged = ""
                else:
                    self._check_children(unacked)
            except CheckpointError as error:
                # The store may be unavailable, or refuse access. The next check is soon: log it once.
                if str(error) != logged:
                    logger.error("The watchdog cannot check agents: %s", error)
                logged = str(error)
            except Exception:
                # The broker may be unavailable.
                logger.exception("The watchdog cannot check agents")
        unacked.close()

    def _is_time_to_poll(self) -> bool:
        now = time.monotonic()
        if now < self._next_poll:
            return False
        self._next_poll = now + randomized(self._interval)
        return True

    def _count_watchdogs(self) -> None:
        if time.monotonic() < self._next_count:
            return
        self._next_count = time.monotonic() + randomized(_COUNT_EVERY)
        context = AppContext.of(self._app)
        self._interval = poll_interval(context.store.count_watchdogs(context.owner, _COUNTS_FOR))

    def check(self, unacked: Unacked) -> None:
        """Check the children of this worker, and once every agent that is due."""
        context = AppContext.of(self._app)
        self._check_children(unacked)
        claimed = context.store.claim_due(_AT_ONCE, _CLAIM_LAPSES_AFTER)
        if len(claimed) >= _AT_ONCE:
            self._next_poll = 0.0  # there may be more
        for agent_id, due_at in claimed:
            self._check_agent(context, unacked, agent_id, due_at)
        # Last: the message of a run that had begun is requeued by now, and must not be put back too.
        self._prefetched.check(unacked)

    def _check_children(self, unacked: Unacked) -> None:
        context = AppContext.of(self._app)
        for agent_id in self._agents_of_dead_children():
            self._check_agent(context, unacked, agent_id, None)

    def _agents_of_dead_children(self) -> list[str]:
        if self._maintain_pool is None:
            return []
        # Each child once, even if it has several requests.
        children = {request.worker_pid: request for request in list(worker_state.active_requests)}
        dead = {pid for pid in children if pid and is_dead(pid)}
        # Each dead child once: its request stays active until the pool has noticed.
        new, self._dead_children = dead - self._dead_children, dead
        if new:
            self._maintain_pool()
        return [agent_id_of(children[pid]._context) for pid in new]

    def _check_agent(
        self, context: AppContext, unacked: Unacked, agent_id: str, due_at: int | None
    ) -> None:
        if due_at is not None and context.lease_renewer.adopt(agent_id, due_at):
            return
        try:
            pause = self._requeue_if_lost(context, unacked, agent_id)
        except StoreError as error:
            logger.warning(log_lines.AGENT_NOT_CHECKED, *log_lines.identity_of_agent(agent_id), error)
            return
        if pause is not None:
            if due_at is None or "reschedule" not in context.store.features:
                context.store.schedule(agent_id, pause)
            else:
                context.store.reschedule({agent_id: due_at}, pause)
        elif due_at is not None:
            self._pauses.pop(agent_id, None)
            # The process that settled the last run may have died before it scheduled the sweep.
            # A deleted agent is not scheduled: without pruning its name would stay there forever.
            [snapshot] = context.store.snapshots([agent_id])
            if snapshot.seen:
                context.store.schedule(agent_id, 0, Schedule.SWEEP)
            context.store.unschedule({agent_id: due_at})

    def _requeue_if_lost(self, context: AppContext, unacked: Unacked, agent_id: str) -> float | None:
        """Return the seconds until the next check; ``None`` if the agent has no open run."""
        if context.lease_renewer.is_renewing(agent_id):
            # This process is alive, however late its renewals are.
            return context.settings.lease_ttl
        activity = context.store.activity(agent_id)
        holder = activity.holder
        if holder is not None and not is_known_dead(holder.owner):
            self._pauses.pop(agent_id, None)
            return max(activity.seconds_left, _SOONEST)
        if self._is_passed_over(context, activity):
            return context.settings.lease_ttl
        runs = _runs_to_requeue(activity, now := system_clock.now())
        if not runs:
            return _seconds_until_due(activity, now)
        if self._may_be_queued(unacked, agent_id, runs):
            return self._longer_pause(agent_id)
        # Fence off the old holder, and leave the lease free for the run that is requeued.
        try:
            lease = context.store.acquire(agent_id, context.owner, _LEASE_SECONDS, over=holder)
        except LeaseHeld:
            return _FIRST_PAUSE
        if not context.store.release(lease):
            return _FIRST_PAUSE
        for run in runs:
            self._requeue(unacked, run)
        return self._longer_pause(agent_id)

    def _is_passed_over(self, context: AppContext, activity: AgentActivity) -> bool:
        """Give the turn of a run that no worker begins to the next one in line. Publish that one."""
        unbegun = (run for run in activity.open if run.run_id == activity.active and not run.attempts)
        run = next(unbegun, None)
        if run is None or activity.count < 2:
            return False
        patience = _PATIENCE * context.settings.lease_ttl
        following = context.store.pass_turn(run.agent_id, run.run_id, patience)
        if following is None:
            return False
        logger.warning(log_lines.PASSED_OVER, *log_lines.identity(run), following.run_id)
        self._pauses.pop(run.agent_id, None)
        publish_next(context, following)
        return True

    def _may_be_queued(self, unacked: Unacked, agent_id: str, runs: list[RunRecord]) -> bool:
        # A copy of each message at every check would make a long queue many times as long.
        is_early = self._pauses.get(agent_id, 0) < _LONGEST_QUEUE_PAUSE
        are_queued = all(run.status is RunStatus.QUEUED and run.envelope for run in runs)
        return is_early and are_queued and all(unacked.is_backlogged(run.envelope) for run in runs)

    def _requeue(self, unacked: Unacked, run: RunRecord) -> None:
        # Also the message of a queued or ended run, if it was not acknowledged.
        if not unacked.restore(run.delivery):
            if not run.envelope:
                return
            publish(self._app, run.envelope, has_begun=run.attempts > 0)
        identity = log_lines.identity(run)
        if run.status is RunStatus.RUNNING:
            logger.warning(log_lines.WORKER_LOST, *identity, run.attempts)
        else:
            logger.warning(log_lines.REQUEUED, *identity, run.attempts, run.status)

    def _longer_pause(self, agent_id: str) -> float:
        if len(self._pauses) >= _REMEMBERED:
            self._pauses.clear()
        pause = self._pauses.get(agent_id, _FIRST_PAUSE)
        self._pauses[agent_id] = min(2 * pause, _LONGEST_PAUSE)
        return pause


def _runs_to_requeue(activity: AgentActivity, now: datetime) -> list[RunRecord]:
    """Return the active run, or all that may begin if none is active; and ended runs that are open."""
    return [
        run
        for run in activity.open
        if (activity.active in (None, run.run_id) and not _is_early(run, now)) or run.status.is_final
    ]


def _is_early(run: RunRecord, now: datetime) -> bool:
    return run.eta is not None and run.eta > now and run.status in _NOT_BEGUN


def _seconds_until_due(activity: AgentActivity, now: datetime) -> float | None:
    """Return when to check runs that are not due yet. ``None`` if there are none."""
    etas = [run.eta for run in activity.open if run.eta is not None]
    return max(0.0, (min(etas) - now).total_seconds()) + _AFTER_ETA if etas else None
