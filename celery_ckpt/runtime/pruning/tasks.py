"""The tasks of a sweep: one that beat sends, and parts of it that run side by side.

``celery_ckpt.prune`` sees how much there is to do, does a part, and sends for others as needed. A part
looks at a bounded number of agents; if there are more, it sends itself again. So no worker is busy for
long, few messages wait, and a fleet of any size is done by as many workers as there are.
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
#: How many agents a part looks at, and how many parts run side by side.
_AGENTS_IN_A_PART, _PARTS_AT_ONCE = 500, 8


def add_tasks(app: Celery) -> None:
    """Give an app the tasks of a sweep; they are its own, not shared with other apps."""
    options: dict[str, Any] = {"shared": False, "lazy": False, "ignore_result": True}
    app.task(_prune, name=PRUNE, bind=True, **options)
    app.task(_prune_part, name=PART, bind=True, **options)


def _prune(self: Any) -> None:
    context = AppContext.of(self.app)
    if context.settings.prune_every is None:
        return  # a scheduler that keeps its entries may go on sending what is switched off
    waiting = context.store.count_due(Schedule.SWEEP)
    parts = min(-(-waiting // _AGENTS_IN_A_PART), _PARTS_AT_ONCE)
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
    # What is not begun by the next sweep is part of that one.
    expires = context.settings.prune_every
    context.app.send_task(PART, (asdict(so_far),), expires=expires, ignore_result=True)
