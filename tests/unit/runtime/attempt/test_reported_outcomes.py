"""The state in the result backend when a run ends while an attempt still stores STARTED or RETRY."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, states
from celery.exceptions import Ignore, TaskRevokedError

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.errors import RunFailed, RunLost
from celery_ckpt.records import RunStatus
from celery_ckpt.run.redaction import KEEP_ALL, Redaction
from celery_ckpt.runtime.attempt import execution
from celery_ckpt.runtime.attempt.attempt_log import AttemptLog
from celery_ckpt.runtime.attempt.backend import store_outcome_if_stale
from celery_ckpt.runtime.attempt.settlement import _on_retried, settle
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
    request = SimpleNamespace(ignore_result=False, id="run")
    task = SimpleNamespace(
        app=app, backend=app.backend, request=request, ignore_result=False, tracks_start=True
    )
    renewer = SimpleNamespace(discard=lambda held: None, unschedule=lambda *_: None)
    context = SimpleNamespace(
        app=app,
        store=store,
        lease_renewer=renewer,
        sends_events=False,
        redaction=Redaction(None),
        settings=SimpleNamespace(lease_ttl=30),
    )
    return SimpleNamespace(
        context=context,
        task=task,
        held=None,
        is_readded=False,
        run_record=make_run("agent", "run"),
        log=AttemptLog(store, make_run("agent", "run"), KEEP_ALL),
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (states.STARTED, states.REVOKED),
        (states.RETRY, states.REVOKED),
        (states.PENDING, states.REVOKED),
        (states.SUCCESS, states.SUCCESS),
        (states.FAILURE, states.FAILURE),
    ],
)
@pytest.mark.parametrize("is_fenced", [False, True], ids=["retried", "fenced"])
def test_the_state_of_a_run_that_was_deleted_during_an_attempt_is_revoked(
    app: Celery, before: str, after: str, is_fenced: bool
) -> None:
    attempt = an_attempt(app, RunStatus.RUNNING)
    attempt.task.request.ckpt_attempt = attempt
    attempt.context.store.delete("agent")
    if before != states.PENDING:
        result = ValueError("broken") if before == states.FAILURE else None
        app.backend.store_result("run", result, before)

    if is_fenced:
        assert isinstance(execution._fenced(attempt, None), Ignore)
    else:
        _on_retried(attempt.task)

    assert app.AsyncResult("run").state == after
    assert list(attempt.context.store.agents()) == []


@pytest.mark.parametrize("before", [states.STARTED, states.PENDING])
def test_a_run_whose_record_is_lost_during_an_attempt_fails(app: Celery, before: str) -> None:
    attempt = an_attempt(app, RunStatus.RUNNING)
    attempt.context.store.delete("agent", remember=0)
    if before != states.PENDING:
        app.backend.store_result("run", None, before)

    loss = execution._fenced(attempt, None)

    assert isinstance(loss, RunLost)
    assert (loss.agent_id, loss.run_id) == ("agent", "run")
    [record] = attempt.context.store.runs("agent")
    assert (record.status, record.delivered) == (RunStatus.FAILED, False)
    assert record.error == f"RunLost: {loss}"
    assert attempt.context.store.claim_due(10, 1) == [], "the watchdog waits for the delivery"
    settle(attempt)
    assert attempt.context.store.runs("agent")[0].is_settled


def test_a_run_whose_record_is_lost_keeps_the_outcome_that_celery_has(app: Celery) -> None:
    attempt = an_attempt(app, RunStatus.RUNNING)
    attempt.context.store.delete("agent", remember=0)
    app.backend.store_result("run", 7, states.SUCCESS)

    assert isinstance(execution._fenced(attempt, None), Ignore)

    assert app.AsyncResult("run").result == 7
    assert list(attempt.context.store.agents()) == []


def test_a_run_whose_record_was_added_again_by_another_delivery_does_not_fail(app: Celery) -> None:
    attempt = an_attempt(app, RunStatus.RUNNING)
    store = attempt.context.store
    store.delete("agent", remember=0)
    lost = store.was_deleted

    def deliver_again(run_id: str) -> bool:
        store.add_run(make_run("agent", "run", attempts=1))
        return lost(run_id)

    attempt.context.store.was_deleted = deliver_again

    assert isinstance(execution._fenced(attempt, None), Ignore)
    assert [run.status for run in store.runs("agent")] == [RunStatus.QUEUED]


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
