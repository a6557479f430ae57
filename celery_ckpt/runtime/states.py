"""Task states that Celery does not keep by itself, or would keep at the wrong time."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.runtime.broker import DAMAGED, content

logger = logging.getLogger(__name__)

#: What a cancelled run's result says.
CANCELLED = "cancelled"
_OUTCOMES = {
    states.SUCCESS: RunStatus.SUCCEEDED,
    states.FAILURE: RunStatus.FAILED,
    states.REVOKED: RunStatus.CANCELLED,
}


def tell_started(task: Any) -> None:
    """STARTED, if that is to be kept: by Celery's own means it would replace the outcome of a run that
    has ended, whenever a late copy of its message is delivered.
    """
    tracks = task.app.conf.task_track_started if task.tracks_start is None else task.tracks_start
    request = task.request
    if not tracks or task.ignore_result or request.ignore_result:
        return
    who = {"pid": os.getpid(), "hostname": request.hostname}
    try:
        task.backend.store_result(request.id, who, states.STARTED, request=request)
    except Exception as error:
        # Nobody's work depends on being watched.
        logger.warning("That run %s has started was not stored: %s", request.id, error)


def tell_cancelled(app: Celery, run: RunRecord) -> None:
    """REVOKED; a chord that waits for the task hears of it, unless nobody can read the message."""
    tell = partial(app.backend.mark_as_revoked, run.run_id, CANCELLED, store_result=True)
    try:
        tell(request=_request(app, run))
    except (*DAMAGED, DecodeError) as error:
        reason = type(error).__name__
        logger.warning(
            "The stored message of run %s, cancelled now, is damaged: %s", run.run_id, reason
        )
        tell()


def told_outcome(task: Any) -> RunStatus | None:
    """How its run has ended, if the result says so; ``None`` if there are no results."""
    try:
        return _OUTCOMES.get(task.backend.get_state(task.request.id))
    except Exception as error:
        logger.info("Whether run %s has ended is not known: %s", task.request.id, error)
        return None


def _request(app: Celery, run: RunRecord) -> Context | None:
    if not run.envelope:
        return None
    try:
        args, kwargs, embedded = content(app, run.envelope)
    except ContentDisallowed:
        return None
    return Context(run.envelope["headers"], args=args, kwargs=kwargs, **embedded)
