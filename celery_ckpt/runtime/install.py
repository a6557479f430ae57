"""The connection to Celery: to its signals once, to each app when it is finalized."""

from __future__ import annotations

import re

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
    """Give an app the worker step and the pruning tasks. This is automatic, and can be repeated."""
    from celery_ckpt.runtime.worker.bootstep import AgentsStep

    app.steps["worker"].add(AgentsStep)
    if PRUNE not in app._tasks:
        add_tasks(app)


def connect() -> None:
    """Connect to Celery's signals, and install in every present and future app."""
    for module in (publisher, settlement, parent, beat, drain, time_limit):
        module.connect()
    _hide_passwords()
    connect_on_app_finalize(install)
    for app in _get_active_apps():
        if app.finalized:
            install(app)


def _hide_passwords() -> None:
    """Have Celery hide the store's URL where it shows settings: ``celery report``, ``inspect conf``,
    Flower. By itself it hides keys, and the passwords in its own URLs.
    """
    hidden, name = utils.HIDDEN_SETTINGS, "CKPT_STORE_URL"
    if name not in hidden.pattern:
        utils.HIDDEN_SETTINGS = re.compile(f"{hidden.pattern}|{name}", hidden.flags)
