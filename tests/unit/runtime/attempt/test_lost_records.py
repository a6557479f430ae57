"""Deliveries of runs that were recorded, and that the store does not know any more."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, states
from celery.exceptions import Ignore, Reject

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.runtime.attempt import start
from celery_ckpt.runtime.broker import publisher
from celery_ckpt.runtime.broker.envelope import BEGUN_HEADER, RECORDED_HEADER, may_have_begun
from celery_ckpt.testing import make_run


@pytest.fixture
def app() -> Celery:
    app = Celery("late", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.backend.forget("run")  # all such backends of a process are one
    return app


def a_task(app: Celery, **request: Any) -> Any:
    fields = {"headers": {"ckpt_agent_id": "agent"}, "properties": {}, "ignore_result": False}
    facts = {"retries": 0, "delivery_info": {}, "ckpt_recorded": True}
    request = SimpleNamespace(id="run", **{**fields, **facts, **request})
    return SimpleNamespace(
        app=app,
        backend=app.backend,
        name="t",
        request=request,
        retention_limits={},
        ignore_result=False,
    )


def delivered(store: MemoryCheckpointStore, task: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Deliver a run that was deleted. Return after how many seconds it is published again."""
    published: list[float] = []
    settings = SimpleNamespace(lease_ttl=30)
    context = SimpleNamespace(store=store, owner="me", settings=settings)
    monkeypatch.setattr(start.AppContext, "of", lambda app: context)
    monkeypatch.setattr(start, "publish_later", lambda task, seconds: published.append(seconds))
    with pytest.raises((Ignore, Reject)):
        start.start(task)
    return published


@pytest.fixture
def emptied() -> MemoryCheckpointStore:
    """A store whose only agent was deleted."""
    store = MemoryCheckpointStore()
    store.add_run(make_run("agent", "run"))
    store.delete("agent")
    return store


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (states.PENDING, states.REVOKED),
        (states.STARTED, states.REVOKED),
        (states.RETRY, states.REVOKED),
        (states.SUCCESS, states.SUCCESS),
    ],
)
def test_the_delivery_of_a_deleted_run_is_dropped_and_its_state_is_corrected(
    app: Celery,
    emptied: MemoryCheckpointStore,
    before: str,
    after: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if before != states.PENDING:
        app.backend.store_result("run", None, before)

    assert delivered(emptied, a_task(app), monkeypatch) == []

    assert app.AsyncResult("run").state == after
    assert list(emptied.agents()) == []


def test_the_delivery_of_a_deleted_run_returns_if_its_state_cannot_be_corrected(
    app: Celery, emptied: MemoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("the result backend is unavailable")

    monkeypatch.setattr(app.backend, "get_state", fail)

    assert delivered(emptied, a_task(app), monkeypatch) == [5.0]


def test_nothing_is_stored_for_a_deleted_run_that_ignores_its_result(
    app: Celery, emptied: MemoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered(emptied, a_task(app, ignore_result=True), monkeypatch)

    assert app.AsyncResult("run").state == states.PENDING


@pytest.mark.parametrize(
    ("request_", "begun"),
    [
        ({}, False),
        ({"retries": 1}, True),
        ({BEGUN_HEADER: True}, True),
        ({"delivery_info": {"redelivered": True}}, True),
        ({"delivery_info": None}, False),
    ],
)
def test_a_message_says_whether_its_run_may_have_begun(
    app: Celery, request_: dict[str, Any], begun: bool
) -> None:
    assert may_have_begun(a_task(app, **request_).request) is begun


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_published_envelope_says_that_its_run_is_recorded_and_whether_it_has_begun(
    app: Celery, has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    producer = SimpleNamespace(publish=lambda body, *, headers, **_: sent.append(headers))
    monkeypatch.setattr(app, "producer_or_acquire", lambda: nullcontext(producer))
    envelope = {
        "headers": {"id": "run"},
        "properties": {},
        "exchange": "",
        "routing_key": "celery",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "text": "[]",
    }

    publisher.publish(app, envelope, has_begun=has_begun)

    assert sent[0][RECORDED_HEADER] is True
    assert sent[0].get(BEGUN_HEADER, False) is has_begun
    assert envelope["headers"] == {"id": "run"}
