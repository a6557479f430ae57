"""Plain Celery tasks that write to the ledger and use nothing of celery_ckpt.

They are shared tasks: the same function belongs to the app of the test and to that of the workers.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Task, shared_task

from tests.support.ledger import here


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
def slow(self: Task[Any, Any], n: int, dt: float) -> int:
    """Make ``n`` steps of ``dt`` seconds. A redelivery starts from the beginning."""
    ledger, run_id = here(), self.request.id
    with ledger.body(run_id, attempt=self.request.retries):
        for step in range(n):
            ledger.call(run_id, f"step {step}")
            time.sleep(dt)
    return n


@shared_task(acks_late=True)
def who() -> int:
    """Return the id of the process that executes this task."""
    return os.getpid()
