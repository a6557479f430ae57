"""Beat: the entry for pruning, put into whichever schedule beat has, when it starts.

The user's ``beat_schedule`` is not touched; an entry of the same name in it is the one that counts.
Schedulers that keep their entries elsewhere (celery-redbeat, django-celery-beat) are given this one in
the way they take the entries of the configuration.
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
    # Also on the task: not every scheduler keeps the options of an entry.
    app.tasks[PRUNE].expires = settings.prune_every
    entry = {
        "task": PRUNE,
        "schedule": schedule(settings.prune_every),
        # While no worker takes them, they do not pile up.
        "options": {"expires": settings.prune_every},
    }
    sender.scheduler.update_from_dict({PRUNE: entry})


def connect() -> None:
    """Listen to beat."""
    beat_init.connect(_on_beat, weak=False, dispatch_uid="celery_ckpt.schedule")
