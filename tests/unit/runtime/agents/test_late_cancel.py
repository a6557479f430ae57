"""Cancelling, deleting and resuming by a process that is slow, or that dies while it does so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, states

from celery_ckpt import Agents, MemoryCheckpointStore
from celery_ckpt.records import MANY_RUNS, RunStatus
from celery_ckpt.runtime.agents import agents as agents_module
from celery_ckpt.runtime.agents import cancellation
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.testing import FakeClock, make_run

TTL = 30.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryCheckpointStore:
    return MemoryCheckpointStore(clock=clock)


def context_of(store: MemoryCheckpointStore) -> Any:
    settings = SimpleNamespace(lease_ttl=TTL)
    return SimpleNamespace(store=store, settings=settings, owner="operator", app=None)


def test_a_cancellation_that_takes_longer_than_its_lease_succeeds(
    store: MemoryCheckpointStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.start_run(make_run("agent", "run"), "worker", TTL)

    def store_late(app: Any, run: Any) -> None:
        clock.advance(TTL + 1)
        store.acquire("agent", "watchdog", TTL)

    monkeypatch.setattr(cancellation, "store_cancelled", store_late)
    assert cancellation.cancel_runs(context_of(store), "agent") == ["run"]


def test_the_watchdog_completes_a_cancellation_whose_process_died(
    store: MemoryCheckpointStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a blocked run: when the active run ends, nothing else would be scheduled."""
    active = store.start_run(make_run("agent", "agent"), "worker", TTL)
    store.start_run(make_run("agent", "waits"), "worker", TTL)
    due_at = store.start_run(make_run("agent", "waits"), "worker", TTL).due_at

    def die(app: Any, run: Any) -> None:
        raise KeyboardInterrupt

    clock.advance(1)
    monkeypatch.setattr(cancellation, "store_cancelled", die)
    with pytest.raises(KeyboardInterrupt):
        cancellation.cancel_runs(context_of(store), "agent")
    ended = active.run.model_copy(update={"status": RunStatus.SUCCEEDED})
    assert store.settle_run(ended, active.lease) is None
    store.unschedule({"agent": due_at})

    clock.advance(TTL + 1)
    assert [run.run_id for run in store.activity("agent").open] == ["waits"]
    assert [agent_id for agent_id, _ in store.claim_due(10, 1)] == ["agent"]


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"status": RunStatus.SUCCEEDED, "result": 7}, states.SUCCESS),
        ({"status": RunStatus.SUCCEEDED, "result": {"ckpt:not-json": "set"}}, states.FAILURE),
        ({"status": RunStatus.FAILED, "error": "Broken"}, states.FAILURE),
        ({"status": RunStatus.QUEUED}, states.REVOKED),
    ],
    ids=["succeeded", "succeeded with an unknown result", "failed", "queued"],
)
def test_deleting_an_agent_stores_the_outcomes_that_only_its_records_contain(
    fields: dict[str, Any], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker died after it had recorded the end of the run."""
    app = Celery("deleting", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.ckpt_store_url = "memory://"
    app.backend.forget("run")
    store = MemoryCheckpointStore()
    context = AppContext(app, store=store)
    monkeypatch.setattr(AppContext, "of", lambda app: context)
    store.add_run(make_run("agent", "run", **fields))

    Agents(app).delete("agent")

    assert app.AsyncResult("run").state == state
    assert list(store.agents()) == []
    assert store.was_deleted("run")


def test_the_old_result_of_a_resumed_run_is_deleted_before_it_can_have_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Celery("resuming", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.ckpt_store_url = "memory://"
    states_seen: list[str] = []

    class ObservedStore(MemoryCheckpointStore):
        def update_run(self, *args: Any, **kwargs: Any) -> None:
            states_seen.append(app.AsyncResult("run").state)
            super().update_run(*args, **kwargs)

    store = ObservedStore()
    context = AppContext(app, store=store)
    monkeypatch.setattr(AppContext, "of", lambda app: context)
    monkeypatch.setattr(agents_module, "publish", lambda *_, **__: None)
    envelope = {"headers": {}, "text": "[]"}
    failed = {"status": RunStatus.FAILED, "delivered": True, "envelope": envelope}
    store.add_run(make_run("agent", "run", **failed))
    app.backend.store_result("run", ValueError("broken"), states.FAILURE)

    Agents(app).resume("agent")

    assert states_seen == [states.PENDING]


def test_more_runs_than_a_store_returns_at_once_are_all_cancelled_the_active_one_last(
    store: MemoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"run {number}" for number in range(2 * MANY_RUNS + 50)]
    for name in names:
        store.add_run(make_run("agent", name))
    store.start_run(make_run("agent", names[0]), "worker", TTL)
    monkeypatch.setattr(cancellation, "store_cancelled", lambda app, run: None)

    cancelled = cancellation.cancel_runs(context_of(store), "agent")

    assert sorted(cancelled) == sorted(names)
    assert cancelled[-1] == names[0]
    assert store.activity("agent").count == 0
