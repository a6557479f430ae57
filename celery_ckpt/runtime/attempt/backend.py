"""Task states that Celery does not keep by itself, or would keep at the wrong time."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.exceptions import TaskRevokedError
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.attempt.results import failure_of, from_record
from celery_ckpt.runtime.broker.envelope import DAMAGED, content_of

logger = logging.getLogger(__name__)

#: What a cancelled run's result says.
CANCELLED = "cancelled"
_UNDER_WAY = (states.STARTED, states.RETRY)
_OUTCOMES = {
    states.SUCCESS: RunStatus.SUCCEEDED,
    states.FAILURE: RunStatus.FAILED,
    states.REVOKED: RunStatus.CANCELLED,
}


def tells_started(task: Any) -> bool:
    """Is STARTED to be kept?"""
    tracks = task.app.conf.task_track_started if task.tracks_start is None else task.tracks_start
    return bool(tracks) and keeps_result(task)


def keeps_result(task: Any) -> bool:
    """Does somebody want to know how the task ends?"""
    return not (task.ignore_result or task.request.ignore_result)


def tell_started(task: Any) -> None:
    """STARTED, if that is to be kept: by Celery's own means it would replace the outcome of a run that
    has ended, whenever a late copy of its message is delivered.
    """
    request = task.request
    if not tells_started(task):
        return
    where = {"pid": os.getpid(), "hostname": request.hostname}
    try:
        task.backend.store_result(request.id, where, states.STARTED, request=request)
    except Exception as error:
        # Nobody's work depends on being watched.
        who = phrases.identity_of_request(task)
        logger.warning(phrases.STATE_NOT_STORED, *who, states.STARTED, error)


def tell_cancelled(app: Celery, run: RunRecord) -> None:
    """REVOKED; a chord that waits for the task hears of it, unless nobody can read the message."""
    tell = partial(app.backend.mark_as_revoked, run.run_id, CANCELLED, store_result=True)
    try:
        tell(request=_request(app, run))
    except (*DAMAGED, DecodeError) as error:
        logger.warning(phrases.MESSAGE_DAMAGED, *phrases.identity(run), type(error).__name__)
        tell()


def tell_again(app: Celery, run: RunRecord) -> None:
    """How a run has ended, if it has. Nobody is called back: that is done by whoever ended it."""
    if run.status is RunStatus.SUCCEEDED:
        app.backend.store_result(run.run_id, from_record(run), states.SUCCESS)
    elif run.status is RunStatus.CANCELLED:
        app.backend.store_result(run.run_id, TaskRevokedError(CANCELLED), states.REVOKED)
    elif run.status is RunStatus.FAILED:
        app.backend.store_result(run.run_id, failure_of(run), states.FAILURE)


def tell_unless_told(app: Celery, run: RunRecord) -> None:
    """The same, unless the result says so: an exception says more than what is on record of it."""
    if isinstance(app.backend, DisabledBackend):
        return
    if app.backend.get_state(run.run_id) not in states.READY_STATES:
        tell_again(app, run)


def tell_if_missed(task: Any, run: RunRecord) -> None:
    """Of a run that has ended the result may still say otherwise: whoever told that, too late, died."""
    try:
        if keeps_result(task) and task.backend.get_state(run.run_id) in _UNDER_WAY:
            tell_again(task.app, run)
    except Exception as error:
        logger.info(phrases.RESULT_NOT_READ, *phrases.identity(run), error)


def told_outcome(task: Any) -> RunStatus | None:
    """How its run has ended, if the result says so; ``None`` if there are no results."""
    try:
        return _OUTCOMES.get(task.backend.get_state(task.request.id))
    except Exception as error:
        logger.info(phrases.RESULT_NOT_READ, *phrases.identity_of_request(task), error)
        return None


def _request(app: Celery, run: RunRecord) -> Context | None:
    if not run.envelope:
        return None
    try:
        args, kwargs, embedded = content_of(app, run.envelope)
    except ContentDisallowed:
        return None
    return Context(run.envelope["headers"], args=args, kwargs=kwargs, **embedded)
