"""Workers that soon try again to start a run that they could not start."""

from __future__ import annotations

from celery.signals import worker_init

from celery_ckpt.runtime.attempt import execution, start

MODULE = "tests.support.tasks.short_waits"


@worker_init.connect
def _retry_soon(**_: object) -> None:
    start.LATER_SECONDS = execution.LATER_SECONDS = 0.5
