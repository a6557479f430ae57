"""Waits where Celery has given up storing the result of a task, before it stores a failure."""

from __future__ import annotations

import time
from typing import Any

from celery.signals import task_internal_error

from tests.support.ledger import here
from tests.support.wait import POLL

GAVE_UP = "gave up"


@task_internal_error.connect
def _wait(task_id: str, **_: Any) -> None:
    here().note(task_id, GAVE_UP)
    while here().is_held(GAVE_UP):
        time.sleep(POLL)
