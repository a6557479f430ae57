"""Keeping leases: one thread a process renews all of them, so that a long model call is not death.

On a Redis broker the messages' visibility deadlines are moved along, by another thread: a broker that
does not answer must not keep leases from being renewed. A lease that turns out to be lost is marked;
its attempt stops at its next event.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from celery import Celery

from celery_ckpt.errors import CheckpointError, LeaseLost
from celery_ckpt.records import Lease
from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.store import CheckpointStore

logger = logging.getLogger(__name__)

#: How often a lease is renewed, and the messages that a worker has are touched, within its time.
RENEWALS = 3


@dataclass(eq=False)
class HeldLease:
    """A lease that is being kept, and the message that goes with it."""

    lease: Lease
    tag: str = ""
    #: Whom a log line about it is about.
    identity: phrases.Identity = (phrases.UNKNOWN,) * 3
    #: Called once, from the keeper's thread, if the lease is lost.
    on_loss: Callable[[], object] | None = None
    #: Does somebody else hold the lease by now?
    is_lost: bool = False

    def lose(self) -> None:
        """Somebody else holds it."""
        if not self.is_lost:
            self.is_lost = True
            if self.on_loss is not None:
                self.on_loss()


class LeaseRenewer:
    """Renews the leases of this process."""

    def __init__(self, app: Celery, store: CheckpointStore, ttl: float) -> None:
        self._app, self._store, self._ttl = app, store, ttl
        #: By agent. One that lost its lease may be at work still when the next one begins.
        self._holds: dict[str, set[HeldLease]] = {}
        self._over: dict[str, int] = {}
        self._lock = threading.Lock()
        self._is_working = False

    def keep(self, hold: HeldLease) -> None:
        """Renew a lease from now on."""
        with self._lock:
            self._holds.setdefault(hold.lease.agent_id, set()).add(hold)
            is_working, self._is_working = self._is_working, True
        if not is_working:
            for name, target in ("keeper", self._work), ("toucher", self._move_deadlines):
                threading.Thread(target=target, name=f"celery_ckpt-{name}", daemon=True).start()

    def let_go(self, hold: HeldLease) -> None:
        """Do not renew it any more."""
        with self._lock:
            own = self._holds.get(hold.lease.agent_id, set())
            own.discard(hold)
            if not own:
                self._holds.pop(hold.lease.agent_id, None)

    def unschedule(self, agent_id: str, due_at: int) -> None:
        """Nothing is left to be watched of an agent. Done for many at once, and soon enough."""
        with self._lock:
            self._over[agent_id] = due_at

    def is_keeping(self, agent_id: str) -> bool:
        """Does this very process hold the agent's lease?"""
        with self._lock:
            return agent_id in self._holds

    def _all(self) -> list[HeldLease]:
        return [hold for own in self._holds.values() for hold in own]

    def _work(self) -> None:
        pause, took = threading.Event(), 0.0
        # With hundreds of agents a round takes its time, which is not to be added to the pause.
        while not pause.wait(max(0.0, self._ttl / RENEWALS - took)):
            began = time.monotonic()
            with self._lock:
                holds = self._all()
                over, self._over = self._over, {}
            for hold in holds:
                self._renew(hold)
            self._unwatch(over)
            took = time.monotonic() - began

    def _move_deadlines(self) -> None:
        unacked, pause = Unacked(self._app.connection_for_write()), threading.Event()
        while not pause.wait(self._ttl / RENEWALS):
            with self._lock:
                tags = [hold.tag for hold in self._all() if hold.tag and not hold.is_lost]
            self._touch(unacked, tags)

    def _renew(self, hold: HeldLease) -> None:
        try:
            self._store.renew(hold.lease, self._ttl)
        except LeaseLost:
            with self._lock:
                is_kept = hold in self._holds.get(hold.lease.agent_id, ())
            if is_kept:  # else it was given up meanwhile
                self.let_go(hold)
                hold.lose()
        except CheckpointError as error:  # also of a right that was taken away: the others are renewed
            # Expiry alone does not fence: if nobody else takes it, the next renewal makes it good.
            logger.warning(phrases.LEASE_NOT_RENEWED, *hold.identity, error)

    def _unwatch(self, over: dict[str, int]) -> None:
        try:
            self._store.unschedule(over)
        except CheckpointError as error:
            logger.info("The watchdog will look at %d idle agents for nothing: %s", len(over), error)

    def _touch(self, unacked: Unacked, tags: list[str]) -> None:
        try:
            unacked.touch(tags)
        except Exception as error:
            # The broker may be away for a while; what it delivers twice is dropped.
            logger.warning("Visibility deadlines could not be extended on the broker: %s", error)
