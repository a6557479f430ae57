"""Recording a run just before its message is published: a new run, or one that is retried."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.run.control_flow import Unrecorded
from celery_ckpt.runtime.attempt.attempt import Attempt, attempt_of
from celery_ckpt.runtime.broker.publisher import before_publish
from celery_ckpt.runtime.process.context import AppContext

#: After how many seconds the watchdog requeues a run that was published, if no worker has begun it.
REQUEUE_AFTER = 30.0


def recorded_before_publishing(
    task: Any, agent_id: str, task_id: str, options: dict[str, Any]
) -> AbstractContextManager[None]:
    """Record the run of the message that is published in the ``with`` block, before it is published.

    Raises:
        StoreUnavailable: the run could not be recorded, and the message was not published.
    """
    attempt = attempt_of(task)
    # A task that replaces this one has the same id, but another agent.
    is_retry = attempt is not None and attempt.is_of(agent_id, task_id)
    serializer = options.get("serializer") or task.serializer or task.app.conf.task_serializer

    def record(envelope: dict[str, Any]) -> None:
        headers = envelope["headers"]
        eta, expires_at = _time(headers.get("eta")), _time(headers.get("expires"))
        delay = _seconds_until(eta)
        if is_retry:
            assert attempt is not None
            _release(attempt, envelope, options.get("retries") or 0, eta)
            return
        run = RunRecord(
            agent_id=agent_id,
            run_id=task_id,
            task=task.name,
            eta=eta,
            expires_at=expires_at,
            envelope=envelope,
            created_at=system_clock.now(),
            **task.retention_limits,
        )
        AppContext.of(task.app).store.add_run(run, due_in=delay + REQUEUE_AFTER)

    return before_publish(task.name, serializer, record)


def _release(attempt: Attempt, envelope: dict[str, Any], retries: int, eta: datetime | None) -> None:
    """Release the lease, with the retry counted in the record."""
    changes = {"status": RunStatus.QUEUED, "retries": retries, "eta": eta, "envelope": envelope}
    try:
        # The watchdog looks when the lease would have ended. It sees the ETA, and waits for it.
        released = attempt.run_record.model_copy(update=changes)
        attempt.release(released, REQUEUE_AFTER, "retried", attempt.retried_for)
    except StoreUnavailable as unavailable:
        # Not an Exception: Celery would take that for a message that could not be sent.
        raise Unrecorded(str(unavailable)) from unavailable


def _time(header: str | None) -> datetime | None:
    if not header:
        return None
    time = datetime.fromisoformat(header)
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _seconds_until(eta: datetime | None) -> float:
    return 0.0 if eta is None else max(0.0, (eta - system_clock.now()).total_seconds())
