"""Connecting the library to Celery: to its signals once, to each app when it is finalized."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery._state import _get_active_apps, connect_on_app_finalize

from celery_ckpt.runtime import parent, saving, schedule, sending, settling
from celery_ckpt.runtime.maintenance import PRUNE, add_tasks


def install(app: Celery) -> None:
    """Let the workers of an app look after agents. Happens by itself; doing it again does no harm."""
    from celery_ckpt.runtime.bootstep import AgentsStep

    app.steps["worker"].add(AgentsStep)
    if PRUNE not in app._tasks:
        add_tasks(app)


def connect() -> None:
    """Listen to Celery, and install in every app there is and will be."""
    for module in (saving, sending, settling, parent, schedule):
        module.connect()
    connect_on_app_finalize(_on_finalize)
    for app in _get_active_apps():
        if app.finalized:
            install(app)


def _on_finalize(app: Any) -> None:
    install(app)
