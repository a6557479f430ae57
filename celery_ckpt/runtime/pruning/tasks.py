"""The tasks of a sweep: the one that beat sends, and parts that run at the same time.

``celery_ckpt.prune`` counts the agents that are due, does one part, and sends further parts as needed.
A part checks a bounded number of agents; if there are more, it sends itself again. So no worker is
busy for long, few messages are queued, and all workers share a sweep of any size.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from celery import Celery

from celery_ckpt.records import Schedule
from celery_ckpt.retention.report import PruneReport
from celery_ckpt.runtime import signals
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.pruning.sweep import sweep

logger = logging.getLogger(__name__)

PRUNE = "celery_ckpt.prune"
PART = "celery_ckpt.prune_part"
#: How many agents a part checks, and how many parts run at the same time.
_AGENTS_IN_A_PART, _PARTS_AT_ONCE = 500, 8


def add_tasks(app: Celery) -> None:
    """Add the tasks to an app; they are not shared with other apps."""
    options: dict[str, Any] = {"shared": False, "lazy": False, "ignore_result": True}
    app.task(_prune, name=PRUNE, bind=True, **options)
    app.task(_prune_part, name=PART, bind=True, **options)


def _prune(self: Any) -> None:
    context = AppContext.of(self.app)
    if context.settings.prune_every is None:
        return  # a scheduler that stores its entries may still send what was switched off
    due = context.store.count_due(Schedule.SWEEP)
    parts = min(-(-due // _AGENTS_IN_A_PART), _PARTS_AT_ONCE)
    for _ in range(parts - 1):
        _send_part(context, PruneReport())
    _do_part(context, PruneReport())


def _prune_part(self: Any, so_far: dict[str, Any]) -> None:
    _do_part(AppContext.of(self.app), PruneReport(**so_far))


def _do_part(context: AppContext, total: PruneReport) -> None:
    done = sweep(context, _AGENTS_IN_A_PART)
    total.include(done)
    if done.agents >= _AGENTS_IN_A_PART:
        logger.info("Pruning continues: %s", total)
        _send_part(context, total)
    elif total.agents:
        logger.info("Pruning finished: %s", total)
        signals.prune_finished.send(sender=context.app, report=total)


def _send_part(context: AppContext, so_far: PruneReport) -> None:
    # A part that has not begun by the next sweep belongs to that one.
    expires = context.settings.prune_every
    context.app.send_task(PART, (asdict(so_far),), expires=expires, ignore_result=True)
