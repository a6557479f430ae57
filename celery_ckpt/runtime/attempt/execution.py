"""How a delivery becomes an outcome for Celery.

RESUME  delivery -> start (lease, attempt) -> load latest, steps -> body(run) -> outcome -> settle

    a duplicate, a settled or blocked run          dropped: Celery acknowledges and stores nothing
    ended, but Celery never got the outcome        the recorded outcome, through Celery
    the body returns or fails                      one write (checkpoint, result, status), then Celery
    hand-off                                       save, release, publish, acknowledge
    the lease is lost                              dropped: another attempt has the run
    the agent was deleted                          dropped: REVOKED
    the store lost the record of a begun run       RunLost
    the process is being terminated                released; the broker or the watchdog requeues the run
    the store is unavailable at the end            published again: only what is on record has happened
    a soft time limit outside the body             before it: handed off; after it: no effect

Why the writes are in this order: docs/explanation/decisions.md.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import (
    CheckpointError,
    CheckpointTooLarge,
    RedactionFailed,
    RunLost,
    RunStalled,
    StoreError,
    StoreUnavailable,
)
from celery_ckpt.records import RunStatus
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.control_flow import Fenced, HandOff, Unrecorded, found
from celery_ckpt.runtime import log_lines, signals
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.attempt.backend import (
    keeps_result,
    store_cancelled,
    store_started,
    stored_outcome,
)
from celery_ckpt.runtime.attempt.run_result import (
    as_record,
    failure_of,
    from_record,
    refuse_what_celery_cannot_keep,
)
from celery_ckpt.runtime.attempt.settlement import store_outcome_again
from celery_ckpt.runtime.attempt.start import (
    LATER_SECONDS,
    UNREADABLE_HERE,
    load_run,
    refusal_of,
    start,
)
from celery_ckpt.runtime.attempt.time_limit import soft_time_limit
from celery_ckpt.runtime.broker.publisher import publish, publish_later
from celery_ckpt.runtime.current import working_for
from celery_ckpt.runtime.process.drain import drain
from celery_ckpt.strategies import Never

logger = logging.getLogger(__name__)

#: After how many seconds the watchdog requeues a run that was handed off, if no worker has begun it.
_REQUEUE_AFTER = 5.0
#: The same for a run whose process was terminated: the broker redelivers most of them by itself.
_REQUEUE_INTERRUPTED_AFTER = 2.0

#: How a pool terminates a body: the exit code of a prefork child at SIGTERM, and the exception of a
#: greenlet, by name, because it cannot be imported without greenlets.
_TERMINATED, _KILLED_GREENLET = -(256 - signal.SIGTERM), "GreenletExit"

#: How many characters of an error's text are recorded.
_LONGEST_ERROR = 10_000


def execute(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Execute what was delivered. Return or raise the outcome for Celery."""
    attempt = start(task)
    if attempt.run_record.status.is_final:
        return _delivered_again(attempt)
    if attempt.run_record.stalled >= attempt.context.settings.max_stalled_attempts:
        record = attempt.run_record
        stalled = RunStalled(agent_id=record.agent_id, run_id=record.run_id, attempts=record.stalled)
        raise _outcome(attempt, None, stalled)
    refusal = refusal_of(task)
    if refusal is not None:
        raise _outcome(attempt, None, refusal)
    store_started(task)
    return work(attempt, lambda: task.run(*args, **kwargs))


def _delivered_again(attempt: Attempt) -> Any:
    """Give Celery the recorded outcome, which it did not get or could not store."""
    record = attempt.run_record
    if record.status is RunStatus.SUCCEEDED:
        return from_record(record)
    if record.status is RunStatus.CANCELLED:
        store_cancelled(attempt.context.app, record)
        # The process that cancelled it died before it recorded the time.
        attempt.run_record = record.model_copy(update={"ended_at": system_clock.now()})
        attempt.is_announced = True
        raise Ignore("the run was cancelled")
    if attempt.is_record_lost:
        attempt.emit_signal(signals.agent_finished, None, record=record)
        raise _loss_of(attempt)
    raise failure_of(record)


def work(attempt: Attempt, body: Callable[[], Any]) -> Any:
    """Execute a body and record how it ends. Return or raise the outcome for Celery."""
    run: AgentRun | None = None
    try:
        run = load_run(attempt)
        attempt.emit_signal(signals.agent_resumed if run.resumed else signals.agent_started, run)
        with working_for(run, attempt), soft_time_limit.enabled():
            attempt.has_begun = True
            value = body()
        if attempt.stop is not None:
            raise attempt.stop  # the body has caught it
        return _finished(attempt, run, value)
    except BaseException as error:
        if run is not None:
            run.explain(error)
        outcome = _outcome(attempt, run, error)
        if outcome is error:
            raise  # unchanged: "from" would hide the error that was being handled
        raise outcome from error.__cause__


def _outcome(attempt: Attempt, run: AgentRun | None, error: BaseException) -> BaseException:
    """Return the outcome for Celery of an exception, after recording it."""
    try:
        return _translated(attempt, run, error)
    except (CheckpointError, Unrecorded) as refusal:
        # The store is unavailable or refuses: no outcome is reported that is not on record.
        return _unrecorded(attempt, refusal)


def _translated(attempt: Attempt, run: AgentRun | None, error: BaseException) -> BaseException:
    control = found(error)
    if isinstance(control, Unrecorded) or (run is None and isinstance(error, StoreUnavailable)):
        raise control or error
    if isinstance(control, Fenced) or attempt.held.is_lost:
        return _fenced(attempt, run)
    if isinstance(control, HandOff):
        return _handed_off(attempt, run, str(control))
    if attempt.should_hand_off_at_limit(error):
        return _out_of_time(attempt, run)
    if isinstance(error, Retry):
        return error  # released by AgentTask.retry, just before its message was published
    if isinstance(error, Reject) and error.requeue:
        return _interrupted(attempt, error)
    if isinstance(error, Ignore | Reject):
        return _left(attempt, run, error)
    if attempt.stop is not None and isinstance(error, Exception):
        return _handed_off(attempt, run, str(attempt.stop))  # the body caught it, and then failed
    if isinstance(error, UNREADABLE_HERE):
        return _put_back(attempt, error)
    if isinstance(error, Exception):
        return _failed(attempt, run, error)
    return _interrupted(attempt, error)


# -- how an attempt ends ---------------------------------------------------------------------------


def _finished(attempt: Attempt, run: AgentRun, value: Any) -> Any:
    run.flush_tool_results()
    # Celery gets the redacted value, like every later reader of the record.
    value = attempt.context.redaction.value(value, "result")
    refuse_what_celery_cannot_keep(attempt.task, value)
    _end(attempt, run, RunStatus.SUCCEEDED, result=as_record(value))
    return value


def _failed(attempt: Attempt, run: AgentRun | None, error: Exception) -> BaseException:
    try:
        _end(
            attempt,
            run,
            RunStatus.FAILED,
            error=_error_text(attempt, error),
        )
    except Fenced:
        return _fenced(attempt, run)
    return error


def _error_text(attempt: Attempt, error: Exception) -> str:
    return attempt.context.redaction.error(error)[:_LONGEST_ERROR]


def _left(attempt: Attempt, run: AgentRun | None, error: Ignore | Reject) -> BaseException:
    """End the run of a body that has Celery forget its task (``Ignore``, ``replace``).

    A message that was rejected without requeueing is a failure, as it is to Celery.
    """
    try:
        if isinstance(error, Reject):
            said = attempt.context.redaction.words(f"rejected: {error.reason}", "rejected")
            _end(attempt, run, RunStatus.FAILED, error=said[:_LONGEST_ERROR])
        else:
            _end(attempt, run, RunStatus.SUCCEEDED)
    except Fenced:
        return _fenced(attempt, run)
    attempt.is_announced = True
    return error


def _end(attempt: Attempt, run: AgentRun | None, status: RunStatus, **outcome: Any) -> None:
    """Write checkpoint, result and status at once. The lease is kept until the run is settled."""
    ended = {"status": status, "ended_at": system_clock.now(), **outcome}
    record = attempt.run_record.model_copy(update=ended)
    store, lease = attempt.context.store, attempt.held.lease
    # A failed run is resumed from its last checkpoint: what came after it may be the cause.
    is_kept = status is RunStatus.SUCCEEDED and not isinstance(attempt.strategy, Never)
    try:
        last = run.snapshot() if run is not None and is_kept else None
        with attempt.log.with_next(attempt.log.ended(status.value, outcome.get("error"))) as noted:
            if run is None or last is None or attempt.has_saved(last):
                attempt.write(lambda: store.update_run(record, lease, **noted))
            else:
                attempt.write(lambda: store.save(last, lease, run=record, **noted))
                attempt.emit_signal(signals.checkpoint_saved, run, checkpoint=last)
    except StoreUnavailable as unavailable:
        raise Unrecorded(str(unavailable)) from unavailable
    attempt.run_record = record
    attempt.emit_signal(signals.agent_finished, run, record=record)


def _out_of_time(attempt: Attempt, run: AgentRun | None) -> BaseException:
    """Hand off at the soft time limit, which may have interrupted anything.

    A body with manual checkpoints keeps its last one. An attempt without progress counts as one that
    died: a call that takes longer than the limit must not be repeated forever.
    """
    status = RunStatus.QUEUED if attempt.has_progressed else RunStatus.RUNNING
    is_saved = attempt.has_progressed and run is not None and not run.is_manual
    return _handed_off(attempt, run, "soft time limit", status, is_saved=is_saved)


def _handed_off(
    attempt: Attempt,
    run: AgentRun | None,
    reason: str,
    status: RunStatus = RunStatus.QUEUED,
    *,
    is_saved: bool = True,
) -> BaseException:
    """Save, release, publish; Celery then acknowledges. In this order, and in no other."""
    if grace := drain.grace_left:
        time.sleep(grace)
    try:
        if (
            run is not None
            and is_saved
            and attempt.has_begun
            and not isinstance(attempt.strategy, Never)
        ):
            attempt.save_as_it_is(run)
        released = attempt.run_record.model_copy(update={"status": status})
        attempt.release(released, _REQUEUE_AFTER, "handed_off", reason)
    except Fenced:
        return _fenced(attempt, run)
    except (CheckpointTooLarge, RedactionFailed, ValueError) as error:
        return _failed(attempt, run, error)  # the state of the run cannot be saved
    iteration = log_lines.UNKNOWN if run is None else run.iteration
    logger.info(log_lines.HANDED_OFF, *log_lines.identity(released), iteration, reason)
    attempt.emit_signal(signals.agent_handed_off, run, reason=reason)
    try:
        app, tag = attempt.context.app, attempt.held.tag
        publish(app, released.envelope, has_begun=True, instead_of=tag)
    except Exception as error:
        logger.warning(log_lines.NOT_PUBLISHED, *log_lines.identity(released), error)
    return Ignore(f"handed off: {reason}")


def _fenced(attempt: Attempt, run: AgentRun | None) -> BaseException:
    attempt.context.lease_renewer.discard(attempt.held)
    run_record = attempt.run_record
    logger.warning(log_lines.LEASE_LOST, *log_lines.identity(run_record), run_record.attempts)
    attempt.emit_signal(signals.lease_lost, run)
    attempt.log.fenced()
    loss = _lost(attempt, run)
    if loss is not None:
        return loss
    if keeps_result(attempt.task):
        store_outcome_again(attempt)  # the outcome may have been overwritten by STARTED or the body
    return Ignore("another attempt has taken over")


def _lost(attempt: Attempt, run: AgentRun | None) -> RunLost | None:
    """Fail a run whose record the store lost during this attempt: nothing would publish it again.

    Return ``None`` if the run is on record, was deleted, or has an outcome.

    Raises:
        StoreUnavailable: the store does not say which.
    """
    store, record = attempt.context.store, attempt.run_record
    try:
        # In this order: a deletion marks the run before it deletes the record.
        if store.run(record.agent_id, record.run_id) or store.was_deleted(record.run_id):
            return None
        if stored_outcome(attempt.task) is not None:
            return None
        loss = _loss_of(attempt)
        failed = {"status": RunStatus.FAILED, "error": _error_text(attempt, loss), "delivered": False}
        record = record.model_copy(update={**failed, "ended_at": system_clock.now()})
        if not store.add_run(record, due_in=attempt.context.settings.lease_ttl):
            return None  # another delivery has added it
    except StoreUnavailable:
        raise
    except StoreError as error:
        logger.error(log_lines.ENDED_NOT_RECORDED, *log_lines.identity(record), record.status, error)
        return None
    attempt.run_record, attempt.is_readded = record, True
    attempt.emit_signal(signals.agent_finished, run, record=record)
    return loss


def _loss_of(attempt: Attempt) -> RunLost:
    return RunLost(agent_id=attempt.run_record.agent_id, run_id=attempt.run_record.run_id)


def _unrecorded(attempt: Attempt, refusal: BaseException) -> BaseException:
    """Publish the run again: to the store, this attempt has died.

    If the message is lost, or is delivered before the lease has expired, the watchdog requeues the run.
    """
    attempt.context.lease_renewer.discard(attempt.held)
    identity = log_lines.identity(attempt.run_record)
    logger.error(log_lines.NOT_RECORDED, *identity, refusal)
    try:
        publish_later(attempt.task, LATER_SECONDS, has_begun=True)
    except Exception as error:
        logger.warning(log_lines.NOT_PUBLISHED, *identity, error)
    return Ignore("the outcome could not be recorded")


def _put_back(attempt: Attempt, error: CheckpointError) -> BaseException:
    """Release a run that this worker cannot read; the watchdog requeues it for others."""
    logger.error(log_lines.CANNOT_CONTINUE, *log_lines.identity(attempt.run_record), error)
    try:
        queued = attempt.run_record.model_copy(update={"status": RunStatus.QUEUED})
        attempt.release(queued, _REQUEUE_AFTER, "put_back", error)
    except Fenced:
        return _fenced(attempt, None)
    return Ignore("the run cannot be read here")


def _interrupted(attempt: Attempt, error: BaseException) -> BaseException:
    """Release the run of a process that is being terminated.

    The cause is a cold shutdown, a revocation or a hard time limit: only the parent knows which. The
    process may have a tenth of a second left. Or the body itself exits: outside a shutdown that counts
    as an attempt that died, otherwise the run would be repeated forever.
    """
    is_wanted = drain.is_on or isinstance(error, Reject) or _is_cancelled(attempt, error)
    status = RunStatus.QUEUED if is_wanted else RunStatus.RUNNING
    released = attempt.run_record.model_copy(update={"status": status})
    try:
        attempt.release(released, _REQUEUE_INTERRUPTED_AFTER, "interrupted", error, retry_seconds=0)
    except BaseException as failure:
        logger.warning(log_lines.LEASE_NOT_RELEASED, *log_lines.identity(released), failure)
    return error


def _is_cancelled(attempt: Attempt, error: BaseException) -> bool:
    """True if Celery may have cancelled the task because the worker lost its broker connection.

    The pool then terminates the attempt as at a revocation, which the parent records itself.
    """
    is_possible = attempt.context.app.conf.worker_cancel_long_running_tasks_on_connection_loss
    return bool(is_possible) and (
        (isinstance(error, SystemExit) and error.code == _TERMINATED)
        or type(error).__name__ == _KILLED_GREENLET
    )
