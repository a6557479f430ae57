"""Messages that a worker has received and not begun: no lease shows that the worker has died.

On Redis they would stay in ``unacked`` until the visibility timeout, an hour. So every worker touches
its own messages, and a message that was not touched for longer than a lease lasts is put back on its
queue. If its worker was only late, one of the two copies is dropped.
"""

from __future__ import annotations

import logging
import time

from celery import Celery

from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.broker.envelope import AGENT_HEADER, DAMAGED, RECORDED_HEADER
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.runtime.process.lease_renewer import RENEWALS
from celery_ckpt.runtime.worker.parent import unacknowledged

logger = logging.getLogger(__name__)

#: Seconds. A run that had begun is requeued by its lease, which comes first and drops its message.
_AFTER_THE_LEASE = 1.0
#: Seconds. Messages untouched for longer were seen before, or belong to other programs.
_SPAN = 60.0
#: Seconds between two checks, at least: a message that waits that much longer has waited for a lease.
_CHECK_EVERY = 2.0


class PrefetchedMessages:
    """The unacknowledged messages of all workers of a broker, as seen by one of them."""

    def __init__(self, app: Celery, ttl: float) -> None:
        self._app, self._ttl = app, ttl
        #: When messages are touched, and checked, next.
        self._next_touch = self._next_check = 0.0
        #: Messages of other tasks, which are not touched.
        self._others: set[str] = set()

    def check(self, unacked: Unacked) -> None:
        """Touch the messages of this worker, if it is time, and put back those of dead workers."""
        now = time.monotonic()
        if now >= self._next_touch:
            self._next_touch = now + self._ttl / RENEWALS
            unacked.touch(unacknowledged())
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_EVERY
        shortest = self._ttl + _AFTER_THE_LEASE
        tags = unacked.untouched_for(shortest, shortest + _SPAN)
        self._others.intersection_update(tags)
        for tag in set(tags) - self._others:
            try:
                self._put_back_if_agents(unacked, tag)
            except DAMAGED as error:
                # It must not keep the messages of agents from being put back.
                name = type(error).__name__
                logger.warning("Message is not a Celery task; ignoring it: tag=%s error=%s", tag, name)
                self._others.add(tag)

    def _put_back_if_agents(self, unacked: Unacked, tag: str) -> None:
        headers = unacked.headers(tag)
        task = headers.get("task")
        is_agents = headers.get(RECORDED_HEADER) or headers.get(AGENT_HEADER)
        if not (is_agents or getattr(self._app.tasks.get(task), "is_agent", False)):
            self._others.add(tag)
        elif unacked.restore(tag):
            run_id = headers.get("id")
            names = headers.get(AGENT_HEADER) or run_id, task, run_id
            logger.warning(log_lines.PREFETCHED_LOST, *map(log_lines.shown, names))
