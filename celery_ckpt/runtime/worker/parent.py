"""What only the worker's parent knows of a run's end: revoked, expired, killed at its hard time limit.

The body saw the same ``SystemExit`` in all these cases, or nothing; its attempt is over either way. The
parent puts it on record, so that no watchdog brings back what was ended on purpose.
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
from celery_ckpt.records import RunStatus
from celery_ckpt.runtime import phrases
from celery_ckpt.runtime.attempt.attempt import attempt_of
from celery_ckpt.runtime.attempt.settlement import publish_next
from celery_ckpt.runtime.broker.envelope import agent_id_of
from celery_ckpt.runtime.process.context import AppContext

logger = logging.getLogger(__name__)

#: Agents' messages that were delivered and are not done with. At a hard time limit Celery has forgotten
#: its own.
_requests: WeakValueDictionary[str, Any] = WeakValueDictionary()


def _on_received(request: Any, **_: Any) -> None:
    if getattr(request.task, "is_agent", False):
        _requests[request.id] = request


def unacknowledged() -> list[str]:
    """The tags of the agents' messages that this worker has."""
    own = [request for request in list(_requests.values()) if not request.acknowledged]
    return [str(request.message.delivery_tag) for request in own if _is_connected(request)]


def _is_connected(request: Any) -> bool:
    """What came over a connection that was lost cannot be acknowledged any more: it must come back."""
    transport = getattr(request.message.channel, "connection", None)
    return getattr(transport, "client", None) is not None


def _on_revoked(sender: Any, request: Any, **_: Any) -> None:
    if getattr(sender, "is_agent", False):
        _end(sender, agent_id_of(request), request.id, RunStatus.CANCELLED, "revoked")


def _on_failure(sender: Any, task_id: str, exception: Any, **_: Any) -> None:
    is_parents = isinstance(exception, TimeLimitExceeded | WorkerLostError)
    if is_parents and getattr(sender, "is_agent", False) and attempt_of(sender) is None:
        agent_id = _agent_id_by(task_id)
        _end(sender, agent_id, task_id, RunStatus.FAILED, f"{type(exception).__name__}: {exception}")


def _on_internal_error(sender: Any, task_id: str, **_: Any) -> None:
    """Celery could not keep an outcome. Without processes of its own, a pool then forgets the message
    too: nobody acknowledges it, and it takes one of the worker's places for ever. It is on record.
    """
    request = _requests.get(task_id) if getattr(sender, "is_agent", False) else None
    if request is not None:
        request.acknowledge()
        worker_state.task_ready(request)


def _agent_id_by(task_id: str) -> str:
    request = _requests.get(task_id)
    return task_id if request is None else agent_id_of(request._context)


def _end(task: Any, agent_id: str, run_id: str, status: RunStatus, reason: str) -> None:
    context = AppContext.of(task.app)
    try:
        lease = context.store.cancel_run(agent_id, run_id, context.owner, context.settings.lease_ttl)
        run = context.store.run(agent_id, run_id)
        assert run is not None
        how = {"status": status, "error": reason[:10_000], "ended_at": system_clock.now()}
        ended = run.model_copy(update=how)
        publish_next(context, context.store.settle_run(ended, lease))
    except (RunNotFound, RunOver):
        return
    except StoreError as error:
        who = map(phrases.shown, (agent_id, task.name, run_id))
        logger.error(phrases.ENDED_NOT_RECORDED, *who, status, error)


def connect() -> None:
    """Listen to Celery."""
    task_received.connect(_on_received, weak=False, dispatch_uid="celery_ckpt.received")
    task_revoked.connect(_on_revoked, weak=False, dispatch_uid="celery_ckpt.revoked")
    task_failure.connect(_on_failure, weak=False, dispatch_uid="celery_ckpt.lost")
    task_internal_error.connect(_on_internal_error, weak=False, dispatch_uid="celery_ckpt.internal")
