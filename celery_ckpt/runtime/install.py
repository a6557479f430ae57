"""Connecting the library to Celery: to its signals once, to each app when it is finalized."""

from __future__ import annotations

import re
from typing import Any

from celery import Celery
from celery._state import _get_active_apps, connect_on_app_finalize
from celery.app import utils

from celery_ckpt.runtime.attempt import settlement, time_limit
from celery_ckpt.runtime.broker import publisher
from celery_ckpt.runtime.process import drain
from celery_ckpt.runtime.pruning import beat
from celery_ckpt.runtime.pruning.tasks import PRUNE, add_tasks
from celery_ckpt.runtime.worker import parent


def install(app: Celery) -> None:
    """Let the workers of an app look after agents. Happens by itself; doing it again does no harm."""
    from celery_ckpt.runtime.worker.bootstep import AgentsStep

    app.steps["worker"].add(AgentsStep)
    if PRUNE not in app._tasks:
        add_tasks(app)


def connect() -> None:
    """Listen to Celery, and install in every app there is and will be."""
    for module in (publisher, settlement, parent, beat, drain, time_limit):
        module.connect()
    _hide_passwords()
    connect_on_app_finalize(_on_finalize)
    for app in _get_active_apps():
        if app.finalized:
            install(app)


def _hide_passwords() -> None:
    """Where Celery shows settings (``celery report``, ``inspect conf``, Flower) it hides what it knows
    to be secret: keys, and passwords in the URLs of its own. The store's is another one.
    """
    hidden, name = utils.HIDDEN_SETTINGS, "CKPT_STORE_URL"
    if name not in hidden.pattern:
        utils.HIDDEN_SETTINGS = re.compile(f"{hidden.pattern}|{name}", hidden.flags)


def _on_finalize(app: Any) -> None:
    install(app)
