"""Ends of runs that only the worker's parent knows: revoked, expired, killed at a hard time limit.

In all these cases the body got the same ``SystemExit``, or nothing, and its attempt is over. The parent
records the end, so that the watchdog does not requeue a run that was ended on purpose.
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakValueDictionary

from billiard.exceptions import WorkerLostError
from celery.exceptions import TimeLimitExceeded
from celery.signals import task_failure, task_internal_error, task_received, task_revoked
from celery.worker import state as worker_state

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import RunNotFound, RunOver, StoreError
from celery_ckpt.event_log import LONGEST_TEXT, LogEntry
from celery_ckpt.records import RunStatus
from celery_ckpt.runtime import log_lines
from celery_ckpt.runtime.attempt.attempt import attempt_of
from celery_ckpt.runtime.attempt.attempt_log import keeps_log
from celery_ckpt.runtime.attempt.settlement import publish_next
from celery_ckpt.runtime.broker.envelope import agent_id_of
from celery_ckpt.runtime.process.context import AppContext

logger = logging.getLogger(__name__)

#: The requests of agent tasks that this worker has, by task id. At a hard time limit Celery has already
#: removed its own entry.
_requests: WeakValueDictionary[str, Any] = WeakValueDictionary()


def _on_received(request: Any, **_: Any) -> None:
    if getattr(request.task, "is_agent", False):
        _requests[request.id] = request


def unacknowledged() -> list[str]:
    """Return the delivery tags of the agents' messages that this worker has."""
    own = [request for request in list(_requests.values()) if not request.acknowledged]
    return [str(request.message.delivery_tag) for request in own if _is_connected(request)]


def _is_connected(request: Any) -> bool:
    """False if the connection was lost: the message cannot be acknowledged, and is redelivered."""
    transport = getattr(request.message.channel, "connection", None)
    return getattr(transport, "client", None) is not None


def _on_revoked(sender: Any, request: Any, **_: Any) -> None:
    if getattr(sender, "is_agent", False):
        _end(sender, agent_id_of(request), request.id, RunStatus.CANCELLED, "revoked")


def _on_failure(sender: Any, task_id: str, exception: Any, **_: Any) -> None:
    is_parents = isinstance(exception, TimeLimitExceeded | WorkerLostError)
    if is_parents and getattr(sender, "is_agent", False) and attempt_of(sender) is None:
        request = _requests.get(task_id)
        agent_id = task_id if request is None else agent_id_of(request._context)
        _end(sender, agent_id, task_id, RunStatus.FAILED, f"{type(exception).__name__}: {exception}")


def _on_internal_error(sender: Any, task_id: str, **_: Any) -> None:
    """Acknowledge a message whose outcome Celery could not store. The outcome is on record.

    A pool without child processes does not acknowledge it, and the message would occupy one of the
    worker's slots forever.
    """
    request = _requests.get(task_id) if getattr(sender, "is_agent", False) else None
    if request is not None:
        request.acknowledge()
        worker_state.task_ready(request)


def _end(task: Any, agent_id: str, run_id: str, status: RunStatus, reason: str) -> None:
    context = AppContext.of(task.app)
    try:
        data = {"run_id": run_id, "how": status.value, "why": reason[:LONGEST_TEXT]}
        end = [LogEntry("ended", system_clock.now(), data)]
        noted = {"log": end} if keeps_log(context.store) else {}
        ttl = context.settings.lease_ttl
        lease = context.store.cancel_run(agent_id, run_id, context.owner, ttl, **noted)
        run = context.store.run(agent_id, run_id)
        assert run is not None
        ended = run.model_copy(
            update={"status": status, "error": reason[:10_000], "ended_at": system_clock.now()}
        )
        publish_next(context, context.store.settle_run(ended, lease))
    except (RunNotFound, RunOver):
        return
    except StoreError as error:
        identity = map(log_lines.shown, (agent_id, task.name, run_id))
        logger.error(log_lines.ENDED_NOT_RECORDED, *identity, status, error)


def connect() -> None:
    """Connect to Celery's signals."""
    task_received.connect(_on_received, weak=False, dispatch_uid="celery_ckpt.received")
    task_revoked.connect(_on_revoked, weak=False, dispatch_uid="celery_ckpt.revoked")
    task_failure.connect(_on_failure, weak=False, dispatch_uid="celery_ckpt.lost")
    task_internal_error.connect(_on_internal_error, weak=False, dispatch_uid="celery_ckpt.internal")
