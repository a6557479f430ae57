"""Renewing leases: one thread for each process renews all of them, also during a long model call.

It renews them in batches, first those that end first. After a renewal it moves the time at which the
watchdog checks the agent, its deadline, to the new end of the lease: nothing needs to read an agent at
work. A deadline is moved only from the value that this process has set. If another process has set it
since, for the attempt that takes over for instance, it stays.

On a Redis broker a second thread extends the visibility timeouts of the messages. It is another thread
because a broker that does not answer must not keep leases from being renewed. A lease that turns out to
be lost is marked; its attempt stops at its next event.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from celery import Celery

from celery_ckpt.errors import CheckpointError, LeaseLost
from celery_ckpt.records import CurrentCall, Lease
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.store import CheckpointStore

logger = logging.getLogger(__name__)

#: How often, within the duration of a lease, it is renewed and the messages of a worker are touched.
RENEWALS = 3
#: How many leases are renewed with one call of the store.
_AT_ONCE = 500


@dataclass(eq=False)
class HeldLease:
    """A lease of this process, and the message that was delivered for it."""

    lease: Lease
    tag: str = ""
    #: Agent, task and run for log lines.
    identity: log_lines.Identity = (log_lines.UNKNOWN,) * 3
    #: Called once, in the renewer's thread, if the lease is lost.
    on_loss: Callable[[], object] | None = None
    #: True once another process has the lease.
    is_lost: bool = False
    #: When the watchdog checks the agent, as this process has set it; ``None``: another process has.
    due_at: int | None = None
    #: Returns what its attempt is calling now; ``None``: there is no event log.
    calling: Callable[[], CurrentCall | None] | None = None

    def lose(self) -> None:
        """Mark the lease as lost."""
        if not self.is_lost:
            self.is_lost = True
            if self.on_loss is not None:
                self.on_loss()


class LeaseRenewer:
    """Renews the leases of this process."""

    def __init__(self, app: Celery, store: CheckpointStore, ttl: float) -> None:
        self._app, self._store, self._ttl = app, store, ttl
        #: By agent. An attempt that lost its lease may still be working when the next one begins.
        self._leases: dict[str, set[HeldLease]] = {}
        self._to_unschedule: list[HeldLease] = []
        self._lock = threading.Lock()
        self._is_working = False

    def add(self, held: HeldLease) -> None:
        """Renew a lease from now on."""
        with self._lock:
            self._leases.setdefault(held.lease.agent_id, set()).add(held)
            is_working, self._is_working = self._is_working, True
        if not is_working:
            for name, target in ("renewer", self._renew_leases), ("toucher", self._touch_messages):
                threading.Thread(target=target, name=f"celery_ckpt-{name}", daemon=True).start()

    def discard(self, held: HeldLease) -> None:
        """Stop renewing a lease."""
        with self._lock:
            of_agent = self._leases.get(held.lease.agent_id, set())
            of_agent.discard(held)
            if not of_agent:
                self._leases.pop(held.lease.agent_id, None)

    def unschedule(self, held: HeldLease) -> None:
        """Take an agent off the watchdog's schedule, together with others, at the next renewal."""
        with self._lock:
            self._to_unschedule.append(held)

    def adopt(self, agent_id: str, due_at: int) -> bool:
        """Move the deadline of an agent, which this process has just set, with the next renewals.

        Return False if this process does not have the lease, or the store cannot move deadlines.
        """
        if "reschedule" not in self._store.features:
            return False
        with self._lock:
            of_agent = self._leases.get(agent_id, ())
            for held in of_agent:
                held.due_at = due_at
            return bool(of_agent)

    def is_renewing(self, agent_id: str) -> bool:
        """True if this process has the lease of the agent."""
        with self._lock:
            return agent_id in self._leases

    def _all(self) -> list[HeldLease]:
        return [held for of_agent in self._leases.values() for held in of_agent]

    def _renew_leases(self) -> None:
        pause, took = threading.Event(), 0.0
        # With hundreds of agents a round takes a while, which must not be added to the pause.
        while not pause.wait(max(0.0, self._ttl / RENEWALS - took)):
            began = time.monotonic()
            self.renew_all()
            took = time.monotonic() - began

    def renew_all(self) -> None:
        """Renew all leases, and unschedule the agents that have finished."""
        with self._lock:
            leases = sorted(self._all(), key=lambda held: held.lease.expires_at)
            finished, self._to_unschedule = self._to_unschedule, []
        for at in range(0, len(leases), _AT_ONCE):
            self._renew(leases[at : at + _AT_ONCE])
        due_times = {held.lease.agent_id: held.due_at for held in finished if held.due_at is not None}
        try:
            self._store.unschedule(due_times)
        except CheckpointError as error:
            count = len(due_times)
            logger.info("Could not unschedule %d finished agents (harmless): %s", count, error)

    def _renew(self, batch: list[HeldLease]) -> None:
        try:
            leases, known = [held.lease for held in batch], {}
            if any(held.calling for held in batch):
                known["calls"] = [held.calling() if held.calling else None for held in batch]
            results = self._store.renew_many(leases, self._ttl, **known)
        except CheckpointError as error:  # of any kind, also missing rights
            # Expiry alone does not fence: unless another process took the lease, the next one succeeds.
            for held in batch:
                logger.warning(log_lines.LEASE_NOT_RENEWED, *held.identity, error)
            return
        renewed = []
        for held, result in zip(batch, results, strict=True):
            if isinstance(result, Lease):
                held.lease = result
                renewed.append(held)
            elif isinstance(result, LeaseLost):
                self._lose(held)
            else:
                logger.warning(log_lines.LEASE_NOT_RENEWED, *held.identity, result)
        self._move_deadlines(renewed)

    def _lose(self, held: HeldLease) -> None:
        with self._lock:
            is_current = held in self._leases.get(held.lease.agent_id, ())
        if is_current:  # otherwise its attempt released it during the renewal
            self.discard(held)
            held.lose()

    def _move_deadlines(self, renewed: list[HeldLease]) -> None:
        """Have the watchdog check these agents when their leases end, unless they were rescheduled."""
        due_times = {held.lease.agent_id: held.due_at for held in renewed if held.due_at is not None}
        if not due_times or "reschedule" not in self._store.features:
            return
        try:
            moved = self._store.reschedule(due_times, self._ttl)
        except CheckpointError as error:
            # The watchdog then checks agents that are at work, and finds that they are.
            count = len(due_times)
            logger.info("Could not reschedule %d agents (harmless): %s", count, error)
            return
        for held in renewed:
            # If the watchdog has claimed the agent in the meantime, that value is not replaced.
            if held.due_at == due_times.get(held.lease.agent_id):
                held.due_at = moved.get(held.lease.agent_id)

    def _touch_messages(self) -> None:
        unacked, pause = Unacked(self._app.connection_for_write()), threading.Event()
        while not pause.wait(self._ttl / RENEWALS):
            with self._lock:
                tags = [held.tag for held in self._all() if held.tag and not held.is_lost]
            try:
                unacked.touch(tags)
            except Exception as error:
                # The broker may be unavailable for a while. What it delivers twice is dropped.
                logger.warning("Could not extend the visibility timeout of messages: %s", error)
