"""Renewing leases: one thread for each process renews all of them, also during a long model call.

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
from celery_ckpt.records import Lease
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.store import CheckpointStore

logger = logging.getLogger(__name__)

#: How often, within the duration of a lease, it is renewed and the messages of a worker are touched.
RENEWALS = 3


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
        self._to_unschedule: dict[str, int] = {}
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

    def unschedule(self, agent_id: str, due_at: int) -> None:
        """Take an agent off the watchdog's schedule, together with others, at the next renewal."""
        with self._lock:
            self._to_unschedule[agent_id] = due_at

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
            with self._lock:
                leases = self._all()
                finished, self._to_unschedule = self._to_unschedule, {}
            for held in leases:
                self._renew(held)
            try:
                self._store.unschedule(finished)
            except CheckpointError as error:
                count = len(finished)
                logger.info("Could not unschedule %d finished agents (harmless): %s", count, error)
            took = time.monotonic() - began

    def _renew(self, held: HeldLease) -> None:
        try:
            self._store.renew(held.lease, self._ttl)
        except LeaseLost:
            with self._lock:
                is_current = held in self._leases.get(held.lease.agent_id, ())
            if is_current:  # otherwise its attempt released it during the renewal
                self.discard(held)
                held.lose()
        except CheckpointError as error:  # of any kind, also missing rights: the others are renewed
            # Expiry alone does not fence: unless another process took the lease, the next one succeeds.
            logger.warning(log_lines.LEASE_NOT_RENEWED, *held.identity, error)

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
