"""From a delivery to an attempt with its run: the lease, the latest checkpoint, the recorded steps.

A delivery starts an attempt only if it is the turn of its run and no live process has the lease of the
agent. Otherwise it is dropped, if the run can be published again from its record; or it is published
later, because this message is the only copy.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery.exceptions import Ignore, Reject
from celery.states import REVOKED
from kombu.exceptions import OperationalError

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import (
    CheckpointTooLarge,
    ConfigurationError,
    EncryptionKeyMissing,
    LeaseHeld,
    LeaseLost,
    NotEncrypted,
    RunLost,
    SchemaTooNew,
    StoreError,
)
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease, RunRecord, RunStatus, StartResult
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.bridge import AsyncBridge, SyncBridge
from celery_ckpt.run.control_flow import Fenced
from celery_ckpt.run.tool_results import repaired
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.attempt.attempt_log import keeps_log
from celery_ckpt.runtime.attempt.backend import (
    keeps_result,
    store_deleted_if_missing,
    store_outcome_if_stale,
    stored_outcome,
)
from celery_ckpt.runtime.attempt.settlement import publish_next, settle
from celery_ckpt.runtime.broker.envelope import (
    RECORDED_HEADER,
    agent_id_of,
    delivery_tag,
    envelope_of_request,
    may_have_begun,
)
from celery_ckpt.runtime.broker.publisher import publish_later
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.lease_renewer import RENEWALS, HeldLease
from celery_ckpt.runtime.process.owner import is_known_dead, is_process
from celery_ckpt.runtime.process.retry import retry_while_unavailable

logger = logging.getLogger(__name__)

#: After how many seconds a delivery returns whose store is unavailable or that cannot be recorded yet.
LATER_SECONDS = 5.0
#: After how many seconds a delivery returns whose agent is locked by a tool.
_SOON_SECONDS = 1.0
#: Another worker may be able to read it, and so may this one after a deploy or a ``rekey``.
UNREADABLE_HERE = (EncryptionKeyMissing, NotEncrypted, SchemaTooNew)


class _Busy(Exception):
    """Another process has the lease of the agent."""


class _InRepair(_Busy):
    """A tool has the lease of the agent: an import or a ``rekey``."""


def start(task: Any) -> Attempt:
    """Begin an attempt at the run that was delivered.

    Raises:
        Ignore: there is nothing to do; Celery acknowledges the message and stores nothing.
        Reject: it cannot be published again either; Celery gives the message back to the broker.
    """
    context = AppContext.of(task.app)
    try:
        try:
            return _started(context, task)
        except _Busy as busy:
            raise _duplicate(context, task, busy) from busy
    except CheckpointTooLarge:
        raise  # the message was not sent by AgentTask.apply_async, and no store can hold it
    except (StoreError, ConfigurationError) as error:
        logger.error(log_lines.CANNOT_START, *log_lines.identity_of_request(task), error)
        reason = "the store is unavailable, refuses the run, or cannot be read here"
        raise _put_off(task, LATER_SECONDS, reason) from error


def _put_off(task: Any, seconds: float, reason: str) -> Ignore | Reject:
    """Publish the message again with a delay; without a broker, let Celery give it back."""
    try:
        publish_later(task, seconds)
    except OperationalError as error:
        logger.warning(log_lines.NOT_PUT_OFF, *log_lines.identity_of_request(task), error)
        return Reject(reason, requeue=True)
    return Ignore(reason)


def _duplicate(context: AppContext, task: Any, busy: _Busy) -> Ignore | Reject:
    """Drop the delivery if the watchdog can publish the run again, from an envelope on record.

    Otherwise this message may be the only copy. If the record was deleted, the process that has begun
    the run may die before it has stored the envelope again.
    """
    reason = f"{busy} works for the agent"
    if isinstance(busy, _InRepair):
        return _put_off(task, _SOON_SECONDS, reason)
    recorded = context.store.run(agent_id_of(task.request), task.request.id)
    if recorded is None or not recorded.has_envelope:
        return _put_off(task, LATER_SECONDS, reason)
    return Ignore(reason)


def _started(context: AppContext, task: Any) -> Attempt:
    request = task.request
    # A message that was not sent by AgentTask.apply_async is recorded by the worker that gets it first.
    is_recorded = bool(getattr(request, RECORDED_HEADER, False))
    agent_id, run_id = checked_name(agent_id_of(request)), checked_name(request.id, "A run_id")
    # If the store does not know a run that had begun, its steps are lost too. It is added as failed.
    is_begun = is_recorded and may_have_begun(request)
    run = RunRecord(
        agent_id=agent_id,
        run_id=run_id,
        task=task.name,
        envelope={} if is_recorded else envelope_of_request(task),
        delivery=delivery_tag(request),
        created_at=system_clock.now(),
        **task.retention_limits,
        **(_lost_fields(agent_id, run_id) if is_begun else {}),
    )
    begun = _begun(context, run, is_recorded, getattr(request, "hostname", None) or "")
    if begun.is_deleted:
        raise _deleted(task, begun.run)
    if begun.lease is None:
        publish_next(context, begun.next)
        raise _nothing_to_do(task, begun.run)
    identity = log_lines.identity(begun.run)
    held = HeldLease(begun.lease, run.delivery, identity, due_at=begun.due_at)
    attempt = Attempt(context, task, begun.run, held)
    context.lease_renewer.add(held)
    request.ckpt_attempt = attempt
    # If the message was delivered more than once, its own count is out of date.
    request.retries = max(request.retries, begun.run.retries)
    if not begun.run.has_envelope:
        attempt.is_record_lost = is_begun
        _restore_record(attempt)
    return attempt


def _lost_fields(agent_id: str, run_id: str) -> dict[str, Any]:
    loss = RunLost(agent_id=agent_id, run_id=run_id)
    return {
        "status": RunStatus.FAILED,
        "error": f"{RunLost.__name__}: {loss}",
        "ended_at": system_clock.now(),
    }


def _deleted(task: Any, run: RunRecord) -> Ignore | Reject:
    """The run was deleted with its agent: store REVOKED, unless it has an outcome, and drop it."""
    if keeps_result(task):
        try:
            store_deleted_if_missing(task.app, run)
        except Exception as error:
            # This message is the last one that can correct the state.
            logger.warning(log_lines.STATE_NOT_STORED, *log_lines.identity(run), REVOKED, error)
            return _put_off(task, LATER_SECONDS, "the result backend is unavailable")
    logger.info(log_lines.DELETED, *log_lines.identity(run))
    return Ignore("the agent was deleted")


def _nothing_to_do(task: Any, run: RunRecord) -> Ignore | Reject:
    """The run is settled; or it is blocked, and is published when its turn comes if it can be."""
    if run.is_settled:
        store_outcome_if_stale(task, run)
        return Ignore("the run is settled")
    if not run.has_envelope:
        return _put_off(task, LATER_SECONDS, "the run is blocked, and only this message has it")
    return Ignore("the run is blocked")


def _begun(context: AppContext, run: RunRecord, is_recorded: bool, worker: str = "") -> StartResult:
    """Start the run in the store; take over a lease whose process is known to be dead."""
    try:
        return _leased(context, run, is_recorded, None, worker)
    except LeaseHeld as held:
        if not is_known_dead(held.owner):
            raise _busy(held) from held
        dead = Lease(
            agent_id=held.agent_id,
            token=held.token,
            nonce=held.nonce,
            owner=held.owner,
            expires_at=system_clock.now(),
        )
    try:
        return _leased(context, run, is_recorded, dead, worker)
    except LeaseHeld as held:
        raise _busy(held) from held


def _busy(held: LeaseHeld) -> _Busy:
    return _Busy(held.owner) if is_process(held.owner) else _InRepair(held.owner)


def _leased(
    context: AppContext, run: RunRecord, is_recorded: bool, over: Lease | None, worker: str
) -> StartResult:
    """Start the run with a lease that lasts until the renewer's next round.

    The time of a lease begins in the store. After a late reply, caused by a failover for instance, the
    lease could expire before the first renewal.
    """
    store, ttl, began = context.store, context.settings.lease_ttl, time.monotonic()
    named = {"worker": worker} if keeps_log(store) else {}
    start = store.start_run(run, context.owner, ttl, over=over, recorded=is_recorded, **named)
    if start.lease is not None and time.monotonic() - began > ttl / RENEWALS:
        try:
            store.renew(start.lease, ttl)
        except LeaseLost as lost:
            raise _Busy("another attempt") from lost
    return start


def _restore_record(attempt: Attempt) -> None:
    """Complete a record that was added because the store had lost it, or had pruned it.

    If Celery has an outcome, the run ends with it. Otherwise the envelope is stored again, so that the
    run can be published from its record.

    Raises:
        Ignore: the run has ended.
    """
    try:
        outcome = stored_outcome(attempt.task)
        if outcome is not None:
            ended = {"status": outcome, "ended_at": system_clock.now()}
            attempt.run_record = attempt.run_record.model_copy(update=ended)
            settle(attempt)
            raise Ignore(f"the run has ended: {outcome}")
        envelope = envelope_of_request(attempt.task)
        record = attempt.run_record.model_copy(update={"envelope": envelope})
        attempt.write(lambda: attempt.context.store.update_run(record, attempt.held.lease))
        attempt.run_record = record
    except Fenced as fenced:
        attempt.context.lease_renewer.discard(attempt.held)
        raise _Busy("another attempt") from fenced
    except BaseException:
        # The attempt does not begin. A lease that is renewed all the same would never expire.
        attempt.context.lease_renewer.discard(attempt.held)
        raise


def load_run(attempt: Attempt) -> AgentRun:
    """Return the run for its body, with the latest checkpoint and the recorded steps."""
    record, store, settings = attempt.run_record, attempt.context.store, attempt.context.settings
    agent_id, run_id, is_first = record.agent_id, record.run_id, record.attempts == 1
    latest, steps = None, []
    if not (is_first and record.progress.startswith("0.")):
        latest = retry_while_unavailable(lambda: store.load_latest(agent_id), settings.lease_ttl)
    if not is_first:
        steps = retry_while_unavailable(lambda: store.steps(agent_id, run_id), settings.lease_ttl)
    attempt.resumes_from(latest)
    run = AgentRun(
        agent_id,
        run_id,
        record.attempts,
        attempt,
        AsyncBridge() if attempt.task.is_async else SyncBridge(),
        latest,
        steps,
        task=attempt.task,
        redaction=attempt.context.redaction,
        cost=settings.cost,
    )
    run.conversation = repaired(run.conversation, attempt.task.pending_calls)
    if run.resumed:
        how_far = record.attempts, run.iteration, len(steps)
        logger.info(log_lines.RESUMED, *log_lines.identity(record), *how_far)
    return run


def refusal_of(task: Any) -> Exception | None:
    """Return what ``before_start`` has raised, or ``None``. With it, the body must not start."""
    refusal: Exception | None = getattr(task.request, "ckpt_refusal", None)
    return refusal
