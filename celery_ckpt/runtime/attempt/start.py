"""From a delivery to an attempt: is it this run's turn, and may this worker work on it?"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery.exceptions import Ignore, Reject
from kombu.exceptions import OperationalError

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import (
    CheckpointTooLarge,
    ConfigurationError,
    EncryptionKeyMissing,
    LeaseHeld,
    LeaseLost,
    NotEncrypted,
    SchemaTooNew,
    StoreError,
)
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease, RunRecord, RunStatus, StartResult
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.bridge import AsyncBridge, SyncBridge
from celery_ckpt.run.tool_results import repaired
from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.attempt.backend import tell_if_missed, told_outcome
from celery_ckpt.runtime.attempt.settlement import settle
from celery_ckpt.runtime.broker.envelope import (
    RECORDED_HEADER,
    agent_id_of,
    delivery_tag,
    envelope_of_request,
)
from celery_ckpt.runtime.broker.publisher import publish_later
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.lease_renewer import RENEWALS, HeldLease
from celery_ckpt.runtime.process.owner import is_known_dead, is_process
from celery_ckpt.runtime.process.retry import retry_while_unavailable

logger = logging.getLogger(__name__)

#: A delivery that finds the store away, or cannot even be recorded, comes back after so long.
LATER_SECONDS = 5.0
#: One that finds its agent in the hands of a tool.
_SOON_SECONDS = 1.0
#: What another worker may be able to read, and this one after a deploy or a ``rekey``.
UNREADABLE_HERE = (EncryptionKeyMissing, NotEncrypted, SchemaTooNew)


class _Busy(Exception):
    """Somebody works for the agent now."""


class _InRepair(_Busy):
    """Somebody has the agent who works on none of its runs: an import, a ``rekey``."""


def start(task: Any) -> Attempt:
    """Begin an attempt at what was delivered.

    Raises:
        Ignore: there is nothing to do; Celery acknowledges the message and stores nothing.
        Reject: nor can it be done later, as yet; Celery gives the message back.
    """
    context = AppContext.of(task.app)
    try:
        return _started_unless_busy(context, task)
    except CheckpointTooLarge:
        raise  # a message that was sent past the store, and that no store can hold
    except (StoreError, ConfigurationError) as error:
        logger.error(phrases.CANNOT_START, *phrases.identity_of_request(task), error)
        reason = "the store is away, refuses, or cannot be read here"
        raise _put_off(task, LATER_SECONDS, reason) from error


def _put_off(task: Any, seconds: float, reason: str) -> Ignore | Reject:
    """Send it later; if the broker is away too, let Celery give the message back to it."""
    try:
        publish_later(task, seconds)
    except OperationalError as error:
        logger.warning(phrases.NOT_PUT_OFF, *phrases.identity_of_request(task), error)
        return Reject(reason, requeue=True)
    return Ignore(reason)


def _started_unless_busy(context: AppContext, task: Any) -> Attempt:
    try:
        return _started(context, task)
    except _Busy as busy:
        raise _duplicate(context, task, busy) from busy


def _duplicate(context: AppContext, task: Any, busy: _Busy) -> Ignore | Reject:
    """Drop what a watchdog could send again: that is on record, envelope and all. Else it is only in
    this message: of one whose record was deleted, whoever began it may not live to keep its envelope.
    """
    reason = f"{busy} works for the agent"
    if isinstance(busy, _InRepair):
        return _put_off(task, _SOON_SECONDS, reason)
    recorded = context.store.run(agent_id_of(task.request), task.request.id)
    if recorded is None or not recorded.has_envelope:
        return _put_off(task, LATER_SECONDS, reason)
    return Ignore(reason)


def _started(context: AppContext, task: Any) -> Attempt:
    run = _delivered(task)
    begun = _begun(context, run)
    if begun.lease is None:
        raise _nothing_to_do(task, begun.run)
    hold = HeldLease(begun.lease, run.delivery, phrases.identity(begun.run))
    attempt = Attempt(context, task, begun.run, hold, begun.due_at)
    context.keeper.keep(hold)
    task.request.ckpt_attempt = attempt
    # What the message says is old if it was delivered more than once.
    task.request.retries = max(task.request.retries, begun.run.retries)
    if not begun.run.has_envelope:
        _seal_or_end(attempt)
    return attempt


def _nothing_to_do(task: Any, run: RunRecord) -> Ignore | Reject:
    """Not now: it is settled, or it waits and is sent when its turn comes, if that is possible."""
    if run.is_settled:
        tell_if_missed(task, run)
        return Ignore("it is settled")
    if not run.has_envelope:
        return _put_off(task, LATER_SECONDS, "it waits for its turn, and only in this message")
    return Ignore("it waits for its turn")


def _seal_or_end(attempt: Attempt) -> None:
    try:
        outcome = told_outcome(attempt.task)
        if outcome is not None:
            raise _over(attempt, outcome)
        _seal(attempt)
    except BaseException:
        # Nobody works on it: a lease that is kept all the same would never end.
        attempt.context.keeper.let_go(attempt.hold)
        raise


def _over(attempt: Attempt, outcome: RunStatus) -> Ignore:
    """The agent was deleted while this message, or a copy of it, was on its way."""
    ended = {"status": outcome, "ended_at": system_clock.now()}
    attempt.run_record = attempt.run_record.model_copy(update=ended)
    settle(attempt)
    return Ignore(f"it has {outcome}" if outcome is not RunStatus.CANCELLED else "it was cancelled")


def _delivered(task: Any) -> RunRecord:
    request = task.request
    # One that was sent past AgentTask.apply_async is recorded by whoever gets it first.
    is_recorded = getattr(request, RECORDED_HEADER, False)
    return RunRecord(
        agent_id=checked_name(agent_id_of(request)),
        run_id=checked_name(request.id, "A run_id"),
        task=task.name,
        envelope={} if is_recorded else envelope_of_request(task),
        delivery=delivery_tag(request),
        created_at=system_clock.now(),
        **task.retention_limits,
    )


def _begun(context: AppContext, run: RunRecord) -> StartResult:
    try:
        return _leased(context, run, None)
    except LeaseHeld as held:
        if not is_known_dead(held.owner):
            raise _busy(held) from held
        over = held
    try:
        return _leased(context, run, _lease(over))
    except LeaseHeld as held:
        raise _busy(held) from held


def _busy(held: LeaseHeld) -> _Busy:
    return _Busy(held.owner) if is_process(held.owner) else _InRepair(held.owner)


def _leased(context: AppContext, run: RunRecord, over: Lease | None) -> StartResult:
    """Begin an attempt with a lease that lasts until the keeper comes round to it.

    Its time began in the store. A reply that came late, after a failover for instance, may have left
    so little of it that it would end before.
    """
    store, ttl, began = context.store, context.settings.lease_ttl, time.monotonic()
    start = store.start_run(run, context.owner, ttl, over=over)
    if start.lease is not None and time.monotonic() - began > ttl / RENEWALS:
        try:
            store.renew(start.lease, ttl)
        except LeaseLost as lost:
            raise _Busy("another attempt") from lost
    return start


def _lease(held: LeaseHeld) -> Lease:
    return Lease(
        agent_id=held.agent_id,
        token=held.token,
        nonce=held.nonce,
        owner=held.owner,
        expires_at=system_clock.now(),
    )


def _seal(attempt: Attempt) -> None:
    """The record was deleted while the message was on its way: keep what it takes to send it again."""
    sealed = envelope_of_request(attempt.task)
    record = attempt.run_record.model_copy(update={"envelope": sealed})
    attempt.write(lambda: attempt.context.store.update_run(record, attempt.hold.lease))
    attempt.run_record = record


def load_run(attempt: Attempt) -> AgentRun:
    """The run as its body will see it: with the latest checkpoint and the recorded steps."""
    record, store = attempt.run_record, attempt.context.store
    agent_id, run_id, patience = record.agent_id, record.run_id, attempt.context.settings.lease_ttl
    has_nothing = record.attempts == 1 and record.progress.startswith("0.")
    latest = (
        None if has_nothing else retry_while_unavailable(lambda: store.load_latest(agent_id), patience)
    )
    is_first = record.attempts == 1
    steps = [] if is_first else retry_while_unavailable(lambda: store.steps(agent_id, run_id), patience)
    attempt.resumes_from(latest)
    bridge = AsyncBridge() if attempt.task.is_async else SyncBridge()
    who, redaction = (agent_id, run_id, record.attempts), attempt.context.redaction
    run = AgentRun(
        *who,
        attempt,
        bridge,
        latest,
        steps,
        task=attempt.task,
        redaction=redaction,
        cost=attempt.context.settings.cost,
    )
    run.conversation = repaired(run.conversation, attempt.task.pending_calls)
    if run.resumed:
        how_far = record.attempts, run.iteration, len(steps)
        logger.info(phrases.RESUMED, *phrases.identity(record), *how_far)
    return run


def refusal_of(task: Any) -> Exception | None:
    """Why a body must not start, if its ``before_start`` has raised."""
    refusal: Exception | None = getattr(task.request, "ckpt_refusal", None)
    return refusal
