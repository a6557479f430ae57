"""The pruning entry in beat's schedule. It is added when beat starts.

The user's ``beat_schedule`` is not changed, and an entry of the same name in it takes precedence.
Schedulers that store their entries elsewhere (celery-redbeat, django-celery-beat) get this one in the
same way as the entries of the configuration.
"""

from __future__ import annotations

from typing import Any

from celery.schedules import schedule
from celery.signals import beat_init

from celery_ckpt.runtime.pruning.tasks import PRUNE
from celery_ckpt.runtime.settings import Settings


def _on_beat(sender: Any, **_: Any) -> None:
    app = sender.app
    settings = Settings.of(app)
    if settings.store_url is None or settings.prune_every is None or PRUNE in app.conf.beat_schedule:
        return
    # Also on the task: not every scheduler stores the options of an entry.
    app.tasks[PRUNE].expires = settings.prune_every
    entry = {
        "task": PRUNE,
        "schedule": schedule(settings.prune_every),
        # So that messages do not accumulate while no worker receives them.
        "options": {"expires": settings.prune_every},
    }
    sender.scheduler.update_from_dict({PRUNE: entry})


def connect() -> None:
    """Connect to beat's signal."""
    beat_init.connect(_on_beat, weak=False, dispatch_uid="celery_ckpt.schedule")
