"""What the watchdog schedules when no run is open, and what does not stop it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
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
from celery_ckpt.runtime.worker.poll_interval import poll_interval
from celery_ckpt.runtime.worker.watchdog import Watchdog
from celery_ckpt.stores.wrapper import WrapperStore
from celery_ckpt.testing import FakeClock, make_run
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


def renewed_here(app: Celery) -> Counter[str]:
    """Start a run in this process, and make its agent due."""
    context = AppContext.of(app)
    run = RunRecord(agent_id="mine", run_id="mine", created_at=system_clock.now())
    lease = context.store.start_run(run, "me", 30).lease
    assert lease is not None
    context.lease_renewer.add(HeldLease(lease))
    context.store.schedule("mine", 0)
    return Counter()


WATCHED = ("activity", "schedule", "reschedule", "acquire", "release", "snapshots", "unschedule")


def test_an_agent_of_this_process_is_left_to_its_renewals(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, calls = AppContext.of(app), renewed_here(app)
    # Around the store, so that the store's calls of its own methods are not counted.
    monkeypatch.setattr(context, "store", WrapperStore(context.store))
    for name in WATCHED:
        counted(monkeypatch, context.store, name, calls)

    look(app)

    assert calls == {}
    context.lease_renewer.renew_all()
    context.store.schedule("another", 0)
    assert [name for name, _ in context.store.claim_due(2, 0)] == ["another"]


def test_an_agent_of_this_process_is_put_off_if_the_store_cannot_reschedule(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, calls = AppContext.of(app), renewed_here(app)
    monkeypatch.setattr(type(context.store), "features", frozenset())
    monkeypatch.setattr(context, "store", WrapperStore(context.store))
    for name in WATCHED:
        counted(monkeypatch, context.store, name, calls)

    look(app)

    assert calls == {"schedule": 1}
    assert context.store.claim_due(1, 0) == [], "it is checked again when its lease could have expired"


def test_a_deadline_that_was_set_during_a_check_is_not_replaced(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AppContext.of(app).store
    run = RunRecord(agent_id="a", run_id="a", created_at=system_clock.now())
    store.start_run(run, "another", 30)
    store.schedule("a", 0)
    activity, set_meanwhile = store.activity, []

    def another_sets_it(agent_id: str) -> Any:
        set_meanwhile.append(store.schedule("a", 5))
        return activity(agent_id)

    monkeypatch.setattr(store, "activity", another_sets_it)
    look(app)

    assert store.unschedule({"a": set_meanwhile[0]}) == 1


def test_the_watchdog_claims_again_at_once_while_a_claim_is_full(app: Celery) -> None:
    store = AppContext.of(app).store
    for number in range(51):
        store.schedule(f"agent {number}", 0)
    watchdog = Watchdog(app, None)

    with app.connection_for_write() as connection:
        assert watchdog._is_time_to_poll()
        watchdog.check(Unacked(connection))
        assert watchdog._is_time_to_poll()
        watchdog.check(Unacked(connection))
        assert not watchdog._is_time_to_poll()
    assert store.count_due() == 0


def test_the_interval_between_claims_follows_the_number_of_watchdogs(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, found = AppContext.of(app).store, []

    def count_watchdogs(name: str, seconds: float) -> int:
        found.append(name)
        return 40

    monkeypatch.setattr(store, "count_watchdogs", count_watchdogs)
    watchdog = Watchdog(app, None)

    watchdog._count_watchdogs()
    watchdog._count_watchdogs()

    assert watchdog._interval == poll_interval(40) == 5
    assert found == [AppContext.of(app).owner], "it is counted again after a while"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the id of each run that is published."""
    ids: list[str] = []

    def publish(app: Celery, envelope: Any, **_: Any) -> None:
        ids.append(envelope["headers"]["id"])

    for place in ("worker.watchdog", "attempt.settlement"):
        monkeypatch.setattr(f"celery_ckpt.runtime.{place}.publish", publish)
    return ids


def send(store: CheckpointStore, *names: str, **fields: Any) -> None:
    for name in names:
        envelope = {"headers": {"id": name}, "exchange": "", "routing_key": ""}
        store.add_run(make_run("agent", name, envelope=envelope, **fields))
    store.schedule("agent", 0)


def test_a_run_that_has_the_turn_and_does_not_begin_is_requeued_and_then_passed_over(
    app: Celery, published: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ttl = AppContext.of(app).store, AppContext.of(app).settings.lease_ttl
    clock = FakeClock(system_clock.now())
    monkeypatch.setattr(store, "_clock", clock)
    send(store, "first", "second")
    store.start_run(make_run("agent", "second"), "worker", ttl)
    clock.advance(ttl + 1)

    look(app)
    assert published == ["first"], "it is requeued"
    clock.advance(ttl)
    look(app)

    assert published == ["first", "second"]
    assert store.activity("agent").active == "second"
    first = store.run("agent", "first")
    assert first is not None
    assert first.passed_over
    clock.advance(10 * ttl)
    look(app)
    assert published[2:] == ["second"], "the only one that is left is not passed over"


def test_a_run_is_not_requeued_before_its_eta(app: Celery, published: list[str]) -> None:
    store, day = AppContext.of(app).store, timedelta(days=1)
    send(store, "later", eta=system_clock.now() + day)

    look(app)
    assert published == []
    assert store.count_due() == 0
    assert store.claim_due(1, 0) == [], "it is checked after its ETA"
    [due_at] = store._schedules[Schedule.WATCHDOG].values()  # type: ignore[attr-defined]
    assert abs(due_at / 1e6 - (system_clock.now() + day).timestamp() - 30) < 10

    send(store, "now")
    look(app)
    assert published == ["now"]


def counted(
    monkeypatch: pytest.MonkeyPatch, store: CheckpointStore, name: str, calls: Counter[str]
) -> None:
    method = getattr(store, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return method(*args, **kwargs)

    monkeypatch.setattr(store, name, call)
