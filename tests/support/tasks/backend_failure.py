"""Stops where Celery has given up on keeping a task's result, and is about to tell that it failed."""

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
