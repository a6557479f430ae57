"""What becomes of a delivery: from the message to the outcome that Celery is given.

RESUME  delivery -> start (lease, attempt) -> load latest, steps -> body(run) -> outcome -> settle

    a duplicate, a settled run, one that waits     dropped: Celery acknowledges, nothing is stored
    finished, but Celery never got the outcome     the recorded outcome, through Celery
    the body returns or fails                      one write (checkpoint, result, status), then Celery
    hand-off                                       save, release, publish, acknowledge
    fenced                                         dropped: somebody else works on it
    the process is being ended                     released; the broker or the watchdog brings it back
    the store is away at the end of it             sent again: what is not on record has not happened
    a soft time limit outside the body             before it: handed off; after it: without effect

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
    RunStalled,
    StoreUnavailable,
)
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.control import Fenced, HandOff, Unrecorded, found
from celery_ckpt.runtime import phrases, signals
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.attempt.backend import keeps_result, tell_cancelled, tell_started
from celery_ckpt.runtime.attempt.results import (
    as_record,
    failure_of,
    from_record,
    refuse_what_celery_cannot_keep,
)
from celery_ckpt.runtime.attempt.settlement import tell_outcome_again
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

#: A run that was handed back and that nobody has begun so much later is sent again.
_UNCLAIMED_SECONDS = 5.0
#: One whose process was ended: the broker brings most of them back by itself.
_INTERRUPTED_SECONDS = 2.0

#: With what a pool ends a body: the code with which the child of a prefork pool exits at SIGTERM, and
#: the exception of a greenlet, which cannot be imported where there are none.
_TERMINATED, _KILLED_GREENLET = -(256 - signal.SIGTERM), "GreenletExit"

#: How much is kept of the text of an error.
_LONGEST_ERROR = 10_000


def execute(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Work on what was delivered. Returns or raises what Celery is to know."""
    attempt = start(task)
    if attempt.run_record.status.is_final:
        return _delivered_again(attempt)
    if attempt.run_record.stalled >= attempt.context.settings.max_stalled_attempts:
        raise _outcome(attempt, None, _stalled(attempt.run_record))
    refusal = refusal_of(task)
    if refusal is not None:
        raise _outcome(attempt, None, refusal)
    tell_started(task)
    return work(attempt, lambda: task.run(*args, **kwargs))


def _delivered_again(attempt: Attempt) -> Any:
    """Give Celery what it did not get, or did not keep."""
    record = attempt.run_record
    if record.status is RunStatus.SUCCEEDED:
        return from_record(record)
    if record.status is RunStatus.CANCELLED:
        tell_cancelled(attempt.context.app, record)
        # Whoever cancelled it did not live to say when.
        attempt.run_record = record.model_copy(update={"ended_at": system_clock.now()})
        attempt.is_announced = True
        raise Ignore("it was cancelled")
    raise failure_of(record)


def _stalled(record: RunRecord) -> RunStalled:
    return RunStalled(agent_id=record.agent_id, run_id=record.run_id, attempts=record.stalled)


def work(attempt: Attempt, body: Callable[[], Any]) -> Any:
    """Execute a body, and put on record how that ends. Returns or raises what Celery is to know."""
    run: AgentRun | None = None
    try:
        run = load_run(attempt)
        attempt.emit_signal(signals.agent_resumed if run.resumed else signals.agent_started, run)
        with working_for(run, attempt), soft_time_limit.interrupting():
            attempt.has_begun = True
            value = body()
        if attempt.stop is not None:
            raise attempt.stop  # something in the body has caught it
        return _finished(attempt, run, value)
    except BaseException as error:
        if run is not None:
            run.explain(error)
        outcome = _outcome(attempt, run, error)
        if outcome is error:
            raise  # as it was raised: "from" would hide the error that was being handled
        raise outcome from error.__cause__


def _outcome(attempt: Attempt, run: AgentRun | None, error: BaseException) -> BaseException:
    """What Celery is to know of an exception, if it can be put on record."""
    try:
        return _translated(attempt, run, error)
    except (CheckpointError, Unrecorded) as refusal:
        # Whether the store is away, or refuses: nobody hears of what is not on record.
        return _unrecorded(attempt, refusal)


def _translated(attempt: Attempt, run: AgentRun | None, error: BaseException) -> BaseException:
    control = found(error)
    if isinstance(control, Unrecorded) or (run is None and isinstance(error, StoreUnavailable)):
        raise control or error
    if isinstance(control, Fenced) or attempt.hold.is_lost:
        return _fenced(attempt, run)
    if isinstance(control, HandOff):
        return _handed_off(attempt, run, str(control))
    if attempt.is_time_to_go(error):
        return _out_of_time(attempt, run)
    if isinstance(error, Retry):
        return error  # released by AgentTask.retry, just before its message was published
    if isinstance(error, Reject) and error.requeue:
        return _interrupted(attempt, error)
    if isinstance(error, Ignore | Reject):
        return _left(attempt, run, error)
    if attempt.stop is not None and isinstance(error, Exception):
        return _handed_off(attempt, run, str(attempt.stop))  # it came of catching that
    if isinstance(error, UNREADABLE_HERE):
        return _put_back(attempt, error)
    if isinstance(error, Exception):
        return _failed(attempt, run, error)
    return _interrupted(attempt, error)


# -- how an attempt ends ---------------------------------------------------------------------------


def _finished(attempt: Attempt, run: AgentRun, value: Any) -> Any:
    run.flush_tool_results()
    # Celery gets what is on record, as whoever asks later does.
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
            error=attempt.context.redaction.error(error)[:_LONGEST_ERROR],
        )
    except Fenced:
        return _fenced(attempt, run)
    return error


def _left(attempt: Attempt, run: AgentRun | None, error: Ignore | Reject) -> BaseException:
    """The body wants Celery to forget the task (``Ignore``, ``replace``): the run is over too. To
    Celery a message that was rejected for good is a failure.
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
    """One write: the last checkpoint, the result, the status. The lease is kept until it is settled."""
    ended = {"status": status, "ended_at": system_clock.now(), **outcome}
    record = attempt.run_record.model_copy(update=ended)
    store, lease = attempt.context.store, attempt.hold.lease
    # A failure is resumed from the last checkpoint: what came after it may be what is wrong.
    is_kept = status is RunStatus.SUCCEEDED and not isinstance(attempt.strategy, Never)
    try:
        last = run.snapshot() if run is not None and is_kept else None
        if run is None or last is None or attempt.has_saved(last):
            attempt.write(lambda: store.update_run(record, lease))
        else:
            attempt.write(lambda: store.save(last, lease, run=record))
            attempt.emit_signal(signals.checkpoint_saved, run, checkpoint=last)
    except StoreUnavailable as away:
        raise Unrecorded(str(away)) from away
    attempt.run_record = record
    attempt.emit_signal(signals.agent_finished, run, record=record)


def _out_of_time(attempt: Attempt, run: AgentRun | None) -> BaseException:
    """In the midst of something: a body that works by its own hand has its last checkpoint. One that
    got nowhere counts as one that died: a call that is too long for the limit must not go on for ever.
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
        attempt.release(released, _UNCLAIMED_SECONDS)
    except Fenced:
        return _fenced(attempt, run)
    except (CheckpointTooLarge, RedactionFailed, ValueError) as error:
        return _failed(attempt, run, error)  # its state is nothing that could be saved
    iteration = phrases.UNKNOWN if run is None else run.iteration
    logger.info(phrases.HANDED_OFF, *phrases.identity(released), iteration, reason)
    attempt.emit_signal(signals.agent_handed_off, run, reason=reason)
    try:
        app, tag = attempt.context.app, attempt.hold.tag
        publish(app, released.envelope, has_begun=True, instead_of=tag)
    except Exception as error:
        logger.warning(phrases.NOT_SENT, *phrases.identity(released), error)
    return Ignore(f"handed off: {reason}")


def _fenced(attempt: Attempt, run: AgentRun | None) -> BaseException:
    attempt.context.keeper.let_go(attempt.hold)
    run_record = attempt.run_record
    logger.warning(phrases.LEASE_LOST, *phrases.identity(run_record), run_record.attempts)
    attempt.emit_signal(signals.lease_lost, run)
    if keeps_result(attempt.task):
        tell_outcome_again(attempt)  # STARTED, or a state that the body told, may have come after it
    return Ignore("another attempt has taken over")


def _unrecorded(attempt: Attempt, refusal: BaseException) -> BaseException:
    """To the store this attempt has died. It is made good by the message or, if that gets lost or comes
    before the lease has ended, by a watchdog.
    """
    attempt.context.keeper.let_go(attempt.hold)
    who = phrases.identity(attempt.run_record)
    logger.error(phrases.NOT_RECORDED, *who, refusal)
    try:
        publish_later(attempt.task, LATER_SECONDS)
    except Exception as error:
        logger.warning(phrases.NOT_SENT, *who, error)
    return Ignore("how it ended could not be recorded")


def _put_back(attempt: Attempt, error: CheckpointError) -> BaseException:
    """Another worker may be able to read it, and this one after a deploy: a watchdog sends it."""
    logger.error(phrases.CANNOT_CONTINUE, *phrases.identity(attempt.run_record), error)
    try:
        queued = attempt.run_record.model_copy(update={"status": RunStatus.QUEUED})
        attempt.release(queued, _UNCLAIMED_SECONDS)
    except Fenced:
        return _fenced(attempt, None)
    return Ignore("it cannot be read here")


def _interrupted(attempt: Attempt, error: BaseException) -> BaseException:
    """The process is being ended, by a cold shutdown, a revocation or a hard time limit: only the
    parent knows which. It may have a tenth of a second left. Or the body itself wants to end it: unless
    somebody shuts down that is an attempt that died, or it would go on so for ever.
    """
    is_wanted = drain.is_on or isinstance(error, Reject) or _is_cancelled(attempt, error)
    status = RunStatus.QUEUED if is_wanted else RunStatus.RUNNING
    released = attempt.run_record.model_copy(update={"status": status})
    try:
        attempt.release(released, _INTERRUPTED_SECONDS, patience=0)
    except BaseException as failure:
        logger.warning(phrases.LEASE_NOT_RELEASED, *phrases.identity(released), failure)
    return error


def _is_cancelled(attempt: Attempt, error: BaseException) -> bool:
    """Does Celery end it because the worker has lost its connection to the broker?

    Its pool then ends the attempt as at a revocation, of which the parent makes a record of its own.
    """
    is_possible = attempt.context.app.conf.worker_cancel_long_running_tasks_on_connection_loss
    return bool(is_possible) and (
        (isinstance(error, SystemExit) and error.code == _TERMINATED)
        or type(error).__name__ == _KILLED_GREENLET
    )
