"""Messages that a worker has fetched and not begun: no lease tells that it has died with them.

On Redis they would stay in ``unacked`` until the visibility timeout, an hour. So every worker touches
those that it has, and one that nobody has touched for longer than a lease lasts is put back on its
queue. If its worker was only late, one of the two copies is dropped.
"""

from __future__ import annotations

import logging
import time

from celery import Celery

from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.broker.envelope import AGENT_HEADER, DAMAGED, RECORDED_HEADER
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.runtime.process.lease_renewer import RENEWALS
from celery_ckpt.runtime.worker.parent import unacknowledged

logger = logging.getLogger(__name__)

#: A run that had begun is brought back by its lease; that comes first, and drops its message.
_LATER = 1.0
#: How far back one is looked for: what is older was seen already, or belongs to other programs.
_SPAN = 60.0


class PrefetchedMessages:
    """The messages of all workers of a broker, as one of them sees them."""

    def __init__(self, app: Celery, ttl: float) -> None:
        self._app, self._ttl = app, ttl
        self._next = 0.0
        #: Messages of other tasks, whose workers touch nothing.
        self._others: set[str] = set()

    def look(self, unacked: Unacked) -> None:
        """Touch what this worker has, if it is time, and put back what the dead had."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._ttl / RENEWALS
            unacked.touch(unacknowledged())
        self._put_back(unacked)

    def _put_back(self, unacked: Unacked) -> None:
        shortest = self._ttl + _LATER
        tags = unacked.untouched_for(shortest, shortest + _SPAN)
        self._others.intersection_update(tags)
        for tag in set(tags) - self._others:
            try:
                self._put_back_if_agents(unacked, tag)
            except DAMAGED as error:
                # It must not keep those of agents from coming back.
                name = type(error).__name__
                logger.warning(
                    "Message is not a Celery task and is left alone: tag=%s error=%s", tag, name
                )
                self._others.add(tag)

    def _put_back_if_agents(self, unacked: Unacked, tag: str) -> None:
        headers = unacked.headers(tag)
        if not self._is_agents(headers):
            self._others.add(tag)
        elif unacked.restore(tag):
            run_id = headers.get("id")
            names = headers.get(AGENT_HEADER) or run_id, headers.get("task"), run_id
            logger.warning(phrases.PREFETCHED_LOST, *map(phrases.shown, names))

    def _is_agents(self, headers: dict[str, object]) -> bool:
        if headers.get(RECORDED_HEADER) or headers.get(AGENT_HEADER):
            return True
        return getattr(self._app.tasks.get(headers.get("task")), "is_agent", False)
