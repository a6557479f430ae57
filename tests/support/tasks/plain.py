"""Plain Celery tasks that leave traces in the ledger; nothing of celery_ckpt is in them.

They are shared tasks: the same function belongs to the app of the tests and to that of the workers.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Task, shared_task

from tests.support.ledger import here


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
def slow(self: Task[Any, Any], n: int, dt: float) -> int:
    """Make ``n`` steps of ``dt`` seconds; a delivery that comes again begins again."""
    ledger, run_id = here(), self.request.id
    with ledger.body(run_id, attempt=self.request.retries):
        for step in range(n):
            ledger.call(run_id, f"step {step}")
            time.sleep(dt)
    return n


@shared_task(acks_late=True)
def who() -> int:
    """The process that runs it."""
    return os.getpid()
