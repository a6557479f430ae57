"""The state in the result backend when a run ends while an attempt still stores STARTED or RETRY."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, states
from celery.exceptions import Ignore, TaskRevokedError

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.errors import RunFailed
from celery_ckpt.records import RunStatus
from celery_ckpt.runtime.attempt import execution
from celery_ckpt.runtime.attempt.backend import store_outcome_if_stale
from celery_ckpt.runtime.attempt.settlement import _on_retried
from celery_ckpt.testing import make_run


@pytest.fixture
def app() -> Celery:
    app = Celery("telling", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.backend.forget("run")  # all such backends of a process share their data
    return app


def an_attempt(app: Celery, status: RunStatus, **fields: Any) -> Any:
    """Return an attempt of a run that is recorded with this status by now."""
    store = MemoryCheckpointStore()
    store.add_run(make_run("agent", "run", status=status, **fields))
    request = SimpleNamespace(ignore_result=False)
    task = SimpleNamespace(app=app, request=request, ignore_result=False, tracks_start=True)
    lease_renewer = SimpleNamespace(discard=lambda held: None)
    context = SimpleNamespace(app=app, store=store, lease_renewer=lease_renewer, sends_events=False)
    return SimpleNamespace(
        context=context,
        task=task,
        held=None,
        run_record=make_run("agent", "run"),
        emit_signal=lambda *_, **__: None,
    )


DELIVERED = {"delivered": True}
OUTCOMES = {
    "cancelled": (RunStatus.CANCELLED, {}, states.REVOKED, TaskRevokedError),
    "failed": (RunStatus.FAILED, {"error": "Broken", **DELIVERED}, states.FAILURE, RunFailed),
    "succeeded": (RunStatus.SUCCEEDED, {"result": 7, **DELIVERED}, states.SUCCESS, int),
    "failed, and not settled yet": (RunStatus.FAILED, {}, states.RETRY, type(None)),
    "queued": (RunStatus.QUEUED, {}, states.RETRY, type(None)),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_retry_does_not_replace_the_outcome_of_a_run_that_has_ended(app: Celery, outcome: str) -> None:
    """Celery stores RETRY after it has published the message: the lease is free by then."""
    status, fields, state, kind = OUTCOMES[outcome]
    attempt = an_attempt(app, status, **fields)
    app.backend.store_result("run", None, states.RETRY)
    attempt.task.request.ckpt_attempt = attempt

    _on_retried(attempt.task)

    result = app.AsyncResult("run")
    assert (result.state, type(result.result).__name__) == (state, kind.__name__)


def test_no_outcome_is_stored_for_a_cancelled_task_that_ignores_its_result(
    app: Celery,
) -> None:
    attempt = an_attempt(app, RunStatus.CANCELLED)
    attempt.task.request.ckpt_attempt, attempt.task.ignore_result = attempt, True

    _on_retried(attempt.task)

    assert app.AsyncResult("run").state == states.PENDING


def test_started_does_not_replace_the_outcome_of_a_cancelled_run(
    app: Celery,
) -> None:
    attempt = an_attempt(app, RunStatus.CANCELLED)
    app.backend.store_result("run", None, states.STARTED)

    assert isinstance(execution._fenced(attempt, None), Ignore)

    assert app.AsyncResult("run").state == states.REVOKED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (states.STARTED, states.REVOKED),
        (states.RETRY, states.REVOKED),
        (states.SUCCESS, states.SUCCESS),
        (states.PENDING, states.PENDING),
    ],
)
def test_a_late_delivery_of_a_cancelled_run_replaces_a_stale_state(
    app: Celery, before: str, after: str
) -> None:
    """Nothing is stored if there is no result: it may have been deleted on purpose."""
    if before != states.PENDING:
        app.backend.store_result("run", None, before)
    cancelled = make_run("agent", "run", status=RunStatus.CANCELLED, delivered=True)
    request = SimpleNamespace(ignore_result=False)
    task = SimpleNamespace(app=app, backend=app.backend, request=request, ignore_result=False)

    store_outcome_if_stale(task, cancelled)

    assert app.AsyncResult("run").state == after
