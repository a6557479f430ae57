"""Task states that Celery does not store in the result backend, or stores at the wrong time."""

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

from celery_ckpt.errors import RunFailed
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.attempt.run_result import failure_of, from_record
from celery_ckpt.runtime.broker.envelope import DAMAGED, content_of

logger = logging.getLogger(__name__)

#: The text of a cancelled run's result.
CANCELLED = "cancelled"
_UNFINISHED = (states.STARTED, states.RETRY)
_OUTCOMES = {
    states.SUCCESS: RunStatus.SUCCEEDED,
    states.FAILURE: RunStatus.FAILED,
    states.REVOKED: RunStatus.CANCELLED,
}


def keeps_result(task: Any) -> bool:
    """True unless the result of the task is ignored."""
    return not (task.ignore_result or task.request.ignore_result)


def store_started(task: Any) -> None:
    """Store STARTED, if the task tracks it.

    Celery itself would store it for every delivery, and so replace the outcome of a run that has ended
    when a late copy of its message is delivered.
    """
    request = task.request
    tracks = task.app.conf.task_track_started if task.tracks_start is None else task.tracks_start
    if not (tracks and keeps_result(task)):
        return
    where = {"pid": os.getpid(), "hostname": request.hostname}
    try:
        task.backend.store_result(request.id, where, states.STARTED, request=request)
    except Exception as error:
        # The run does not depend on it.
        identity = log_lines.identity_of_request(task)
        logger.warning(log_lines.STATE_NOT_STORED, *identity, states.STARTED, error)


def store_cancelled(app: Celery, run: RunRecord) -> None:
    """Store REVOKED. A chord that waits for the task gets it too, unless the message is unreadable."""
    mark = partial(app.backend.mark_as_revoked, run.run_id, CANCELLED, store_result=True)
    try:
        mark(request=_request(app, run))
    except (*DAMAGED, DecodeError) as error:
        logger.warning(log_lines.MESSAGE_DAMAGED, *log_lines.identity(run), type(error).__name__)
        mark()


def store_outcome(app: Celery, run: RunRecord) -> None:
    """Store the recorded outcome of a run, if it has ended.

    This does not call callbacks: the process that ended the run does.
    """
    if run.status is RunStatus.SUCCEEDED:
        try:
            app.backend.store_result(run.run_id, from_record(run), states.SUCCESS)
        except RunFailed as unknown:  # the record could not hold the result
            app.backend.store_result(run.run_id, unknown, states.FAILURE)
    elif run.status is RunStatus.CANCELLED:
        app.backend.store_result(run.run_id, TaskRevokedError(CANCELLED), states.REVOKED)
    elif run.status is RunStatus.FAILED:
        app.backend.store_result(run.run_id, failure_of(run), states.FAILURE)


def store_outcome_if_missing(app: Celery, run: RunRecord) -> None:
    """Store the recorded outcome, unless there is one: an exception says more than its record."""
    if isinstance(app.backend, DisabledBackend):
        return
    if app.backend.get_state(run.run_id) not in states.READY_STATES:
        store_outcome(app, run)


def store_deleted_if_missing(app: Celery, run: RunRecord) -> None:
    """Store REVOKED for a run that was deleted, unless it has an outcome.

    An attempt may have stored STARTED or RETRY after the deletion. Without this, code that waits for
    the result would wait forever.
    """
    cancelled = run.model_copy(update={"status": RunStatus.CANCELLED})
    store_outcome_if_missing(app, cancelled)


def store_outcome_if_stale(task: Any, run: RunRecord) -> None:
    """Replace a stale STARTED or RETRY of a run that has ended."""
    try:
        if keeps_result(task) and task.backend.get_state(run.run_id) in _UNFINISHED:
            store_outcome(task.app, run)
    except Exception as error:
        logger.info(log_lines.RESULT_NOT_READ, *log_lines.identity(run), error)


def stored_outcome(task: Any) -> RunStatus | None:
    """Return how the run has ended by its result; ``None`` if it has not, or has no result."""
    try:
        return _OUTCOMES.get(task.backend.get_state(task.request.id))
    except Exception as error:
        logger.info(log_lines.RESULT_NOT_READ, *log_lines.identity_of_request(task), error)
        return None


def _request(app: Celery, run: RunRecord) -> Context | None:
    if not run.envelope:
        return None
    try:
        args, kwargs, embedded = content_of(app, run.envelope)
    except ContentDisallowed:
        return None
    return Context(run.envelope["headers"], args=args, kwargs=kwargs, **embedded)
