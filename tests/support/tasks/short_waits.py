"""Workers that come back soon to what they could not begin, so that tests need not wait for them."""

from __future__ import annotations

from celery.signals import worker_init

from celery_ckpt.runtime.attempt import execution, start

MODULE = "tests.support.tasks.short_waits"


@worker_init.connect
def _be_impatient(**_: object) -> None:
    start.LATER_SECONDS = execution.LATER_SECONDS = 0.5
