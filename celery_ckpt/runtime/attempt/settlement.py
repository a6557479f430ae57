"""After the end: Celery has the outcome, so the run is settled and the next one gets its turn.

Celery stores the result and sends the callbacks after the body has returned; ``task_success`` and
``task_failure`` say that it has, ``task_postrun`` comes whether it has or not. A run that ended and
whose outcome Celery could not keep stays open: the watchdog brings it back until it is delivered.

No slot waits for it: the run has ended, and the next task may begin meanwhile.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from celery.signals import task_failure, task_postrun, task_retry, task_success, worker_process_shutdown

from celery_ckpt.errors import LeaseError, StoreError
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.attempt.attempt import Attempt, attempt_of
from celery_ckpt.runtime.attempt.backend import keeps_result, tell_unless_told
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
    # Celery says so after the lease was given up, and after the message was published.
    if attempt is not None and keeps_result(attempt.task):
        tell_outcome_again(attempt)


def _on_postrun(sender: Any, **_: Any) -> None:
    attempt = attempt_of(sender)
    if attempt is None:
        return
    # However it ended: a lease that nobody works with must come to its end.
    attempt.context.keeper.let_go(attempt.hold)
    if attempt.is_announced and attempt.run_record.status.is_final:
        attempt.context.aside.do(lambda: settle(attempt))
    if sys.exc_info()[0] is not None:
        _tell_nobody(sender.request)


def _tell_nobody(request: Any) -> None:
    """An exception leaves Celery's tracer, which would now tell everybody that the task has failed of
    it. What is true is on record: the outcome, which is delivered again if Celery could not keep it, or
    that the run has gone back to the queue.
    """
    request.update(ignore_result=True, chord=None, chain=None, errbacks=None)


def finish(**_: Any) -> None:
    """This process ends: settle first what has ended. A watchdog does what takes too long."""
    for context in AppContext.all():
        context.aside.finish(context.settings.lease_ttl)


def settle(attempt: Attempt) -> None:
    """Mark the run as delivered; send the one that waits."""
    store, record = attempt.context.store, attempt.run_record
    patience = attempt.context.settings.lease_ttl
    try:
        following = retry_while_unavailable(
            lambda: store.settle_run(record, attempt.hold.lease), patience
        )
        # An agent with a name of its own may have a run that was recorded, and whose message was lost.
        if following is None and record.run_id == record.agent_id:
            attempt.context.keeper.unschedule(record.agent_id, attempt.due_at)
    except LeaseError:
        logger.warning(phrases.SETTLED_ELSEWHERE, *phrases.identity(record))
    except StoreError as error:
        logger.error(phrases.NOT_SETTLED, *phrases.identity(record), error)
    else:
        publish_next(attempt.context, following)


def tell_outcome_again(attempt: Attempt) -> None:
    """This attempt may have told Celery that its run is at work, or to be tried again, just after it
    had ended in other hands, by a cancellation for instance: whoever waits would wait for ever.
    """
    context, run_record = attempt.context, attempt.run_record
    try:
        run = context.store.run(run_record.agent_id, run_record.run_id)
        # Whoever has a result or an exception, and has not settled it, tells it better than its record.
        if run is not None and (run.is_settled or run.status is RunStatus.CANCELLED):
            tell_unless_told(context.app, run)
    except Exception as error:
        who = phrases.identity(run_record)
        logger.warning(phrases.STATE_NOT_STORED, *who, phrases.UNKNOWN, error)


def publish_next(context: AppContext, following: RunRecord | None) -> None:
    """Send a run whose turn has come; a watchdog does it if this fails."""
    if following is None:
        return
    try:
        context.store.schedule(following.agent_id, context.settings.lease_ttl)
        has_begun, waited = following.attempts > 0, following.delivery
        publish(context.app, following.envelope, has_begun=has_begun, instead_of=waited)
    except Exception as error:
        logger.warning(phrases.NOT_SENT, *phrases.identity(following), error)


def connect() -> None:
    """Listen to Celery."""
    for number, signal in enumerate((task_success, task_failure)):
        signal.connect(_on_announced, weak=False, dispatch_uid=f"celery_ckpt.announced.{number}")
    task_retry.connect(_on_retried, weak=False, dispatch_uid="celery_ckpt.retried")
    task_postrun.connect(_on_postrun, weak=False, dispatch_uid="celery_ckpt.postrun")
    worker_process_shutdown.connect(finish, weak=False, dispatch_uid="celery_ckpt.shutdown")
