"""After the end of a run: Celery has its outcome, so the run is settled and the next one has its turn.

Celery stores the result and sends the callbacks after the body has returned. ``task_success`` and
``task_failure`` say that it has; ``task_postrun`` comes in any case. If Celery could not store the
outcome of a run that has ended, the run stays open: the watchdog requeues it until Celery has it.

No worker slot waits for this: it is done in the background, while the slot takes its next task.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from celery.signals import task_failure, task_postrun, task_retry, task_success, worker_process_shutdown

from celery_ckpt.errors import LeaseError, StoreError
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.attempt.attempt import Attempt, attempt_of
from celery_ckpt.runtime.attempt.backend import (
    keeps_result,
    store_deleted_if_missing,
    store_outcome_if_missing,
)
from celery_ckpt.runtime.broker.publisher import publish
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.retry import retry_while_unavailable

logger = logging.getLogger(__name__)


def _on_announced(sender: Any, **_: Any) -> None:
    attempt = attempt_of(sender)
    if attempt is not None:
        attempt.is_announced = True


def _on_retried(sender: Any, **_: Any) -> None:
    attempt = attempt_of(sender)
    # Celery stores RETRY after the lease was released and the message was published.
    if attempt is not None and keeps_result(attempt.task):
        store_outcome_again(attempt)


def _on_postrun(sender: Any, **_: Any) -> None:
    attempt = attempt_of(sender)
    if attempt is None:
        return
    # However the attempt ended: a lease without an attempt must expire.
    attempt.context.lease_renewer.discard(attempt.held)
    if attempt.is_announced and attempt.run_record.status.is_final:
        attempt.context.background.do(lambda: settle(attempt))
    if sys.exc_info()[0] is not None:
        # An exception leaves Celery's tracer, and Celery would report it as the failure of the task.
        # The record is right: it has the outcome, which is delivered again, or the run is queued.
        sender.request.update(ignore_result=True, chord=None, chain=None, errbacks=None)


def finish_settling(**_: Any) -> None:
    """Wait, before this process ends, until its runs are settled. The watchdog settles the rest."""
    for context in AppContext.all():
        context.background.finish(context.settings.lease_ttl)


def settle(attempt: Attempt) -> None:
    """Settle the run, and publish the next run of the agent."""
    store, record = attempt.context.store, attempt.run_record
    ttl = attempt.context.settings.lease_ttl
    # The record of a run that was lost during the attempt was added again, without a lease.
    lease = None if attempt.is_readded else attempt.held.lease
    try:
        following = retry_while_unavailable(lambda: store.settle_run(record, lease), ttl)
        # A named agent stays scheduled: it may have a run on record whose message was lost.
        if following is None and record.run_id == record.agent_id:
            attempt.context.lease_renewer.unschedule(attempt.held)
    except LeaseError:
        logger.warning(log_lines.SETTLED_ELSEWHERE, *log_lines.identity(record))
    except StoreError as error:
        logger.error(log_lines.NOT_SETTLED, *log_lines.identity(record), error)
    else:
        publish_next(attempt.context, following)


def store_outcome_again(attempt: Attempt) -> None:
    """Store the outcome of a run that another process has ended, by a cancellation or a deletion.

    This attempt may have stored STARTED or RETRY just after that end. Without this, code that waits for
    the result would wait forever.
    """
    context, run_record = attempt.context, attempt.run_record
    try:
        run = context.store.run(run_record.agent_id, run_record.run_id)
        if run is None and context.store.was_deleted(run_record.run_id):
            store_deleted_if_missing(context.app, run_record)
        # Before a run is settled, its own process has the result or exception, not only the record.
        if run is not None and (run.is_settled or run.status is RunStatus.CANCELLED):
            store_outcome_if_missing(context.app, run)
    except Exception as error:
        identity = log_lines.identity(run_record)
        logger.warning(log_lines.STATE_NOT_STORED, *identity, log_lines.UNKNOWN, error)


def publish_next(context: AppContext, following: RunRecord | None) -> None:
    """Publish the run whose turn has come. If that fails, the watchdog requeues it."""
    if following is None:
        return
    try:
        context.store.schedule(following.agent_id, context.settings.lease_ttl)
        has_begun, tag = following.attempts > 0, following.delivery
        publish(context.app, following.envelope, has_begun=has_begun, instead_of=tag)
    except Exception as error:
        logger.warning(log_lines.NOT_PUBLISHED, *log_lines.identity(following), error)


def connect() -> None:
    """Connect to Celery's signals."""
    for number, signal in enumerate((task_success, task_failure)):
        signal.connect(_on_announced, weak=False, dispatch_uid=f"celery_ckpt.announced.{number}")
    task_retry.connect(_on_retried, weak=False, dispatch_uid="celery_ckpt.retried")
    task_postrun.connect(_on_postrun, weak=False, dispatch_uid="celery_ckpt.postrun")
    worker_process_shutdown.connect(finish_settling, weak=False, dispatch_uid="celery_ckpt.shutdown")
