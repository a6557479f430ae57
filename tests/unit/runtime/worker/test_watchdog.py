"""What the watchdog schedules when no run is open, and what does not stop it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.worker import state as worker_state

from celery_ckpt import CheckpointStore
from celery_ckpt.clock import system_clock
from celery_ckpt.records import RunRecord, RunStatus, Schedule
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.lease_renewer import HeldLease
from celery_ckpt.runtime.worker import watchdog
from celery_ckpt.runtime.worker.watchdog import Watchdog
from celery_ckpt.stores.wrapper import WrapperStore
from celery_ckpt.testing import make_run
from tests.support.tasks.scenarios import MODULE, count
from tests.support.workers.broker import RedisBroker


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("watched", broker="memory://", set_as_current=False)
    app.conf.ckpt_store_url = "memory://"
    yield app
    app.close()


def ended(store: CheckpointStore) -> None:
    """Return an agent whose only run has ended and that is due."""
    begun = store.start_run(RunRecord(agent_id="a", run_id="a", created_at=system_clock.now()), "me", 9)
    store.settle_run(begun.run.model_copy(update={"status": RunStatus.SUCCEEDED}), begun.lease)
    store.schedule("a", 0)


def look(app: Celery) -> None:
    with app.connection_for_write() as connection:
        Watchdog(app, lambda: None).check(Unacked(connection))


def test_the_watchdog_schedules_the_sweep_that_a_dead_worker_did_not_schedule(
    app: Celery,
) -> None:
    store = AppContext.of(app).store
    ended(store)
    due = store.claim_due(1, 0, Schedule.SWEEP)
    store.unschedule(dict(due), Schedule.SWEEP)  # as if it had died before it scheduled the sweep

    look(app)

    assert [agent_id for agent_id, _ in store.claim_due(1, 0, Schedule.SWEEP)] == ["a"]
    assert store.count_due() == 0, "nothing is left to check"


def test_the_watchdog_schedules_no_sweep_for_a_deleted_agent(app: Celery) -> None:
    store = AppContext.of(app).store
    ended(store)
    store.delete("a")

    look(app)

    assert (store.count_due(), store.count_due(Schedule.SWEEP)) == (0, 0)


@pytest.mark.configured(include=(MODULE,))
@pytest.mark.parametrize("forged", [{"headers": {}}, {"exchange": "", "routing_key": ["celery"]}])
def test_an_agent_with_a_forged_message_does_not_keep_the_watchdog_from_the_others(
    celery_app: Celery, broker: RedisBroker, forged: dict[str, Any]
) -> None:
    store = AppContext.of(celery_app).store
    store.add_run(make_run("forged", "forged", envelope=forged), due_in=0)
    count.apply_async((1,), agent_id="other")
    with broker.server.client(db=broker.db) as client:
        client.delete("celery")  # it was lost
    store.schedule("other", 0)

    look(celery_app)

    assert broker.queue_length() == 1


def active(monkeypatch: pytest.MonkeyPatch, *pids: int | None) -> list[int]:
    """Make requests active in these processes. Return the processes that are checked."""
    asked: list[int] = []

    def is_dead(pid: int) -> bool:
        asked.append(pid)
        return False

    requests = {Request(worker_pid=pid) for pid in pids}
    monkeypatch.setattr(worker_state, "active_requests", requests)
    monkeypatch.setattr(watchdog, "is_dead", is_dead)
    return asked


class Request:
    """A request with the attributes that the watchdog reads."""

    def __init__(self, worker_pid: int | None) -> None:
        self.worker_pid = worker_pid


def test_each_child_is_checked_once_however_many_requests_it_has(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = active(monkeypatch, 11, 12, 11, 12, 11, None)

    look(app)

    assert sorted(asked) == [11, 12]


def test_no_process_is_checked_if_the_pool_has_no_children(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With greenlets worker_pid is not a pid; with threads it is the pid of the worker itself."""
    asked = active(monkeypatch, 139_832_115_423_040, 11)

    with app.connection_for_write() as connection:
        Watchdog(app, None).check(Unacked(connection))

    assert asked == []


def test_an_agent_of_this_process_is_not_read(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    context, calls = AppContext.of(app), Counter[str]()
    run = RunRecord(agent_id="mine", run_id="mine", created_at=system_clock.now())
    lease = context.store.start_run(run, "me", 30).lease
    assert lease is not None
    context.lease_renewer.add(HeldLease(lease))
    context.store.schedule("mine", 0)
    # Around the store, so that the store's calls of its own methods are not counted.
    monkeypatch.setattr(context, "store", WrapperStore(context.store))
    for name in ("activity", "schedule", "acquire", "release", "snapshots", "unschedule"):
        counted(monkeypatch, context.store, name, calls)

    look(app)

    assert calls == {"schedule": 1}
    assert context.store.claim_due(1, 0) == [], "it is checked again when its lease could have expired"


def counted(
    monkeypatch: pytest.MonkeyPatch, store: CheckpointStore, name: str, calls: Counter[str]
) -> None:
    method = getattr(store, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return method(*args, **kwargs)

    monkeypatch.setattr(store, name, call)
