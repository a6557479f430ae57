"""Deliveries with a store that answers late, and for agents whose lease another process has."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject
from kombu.exceptions import OperationalError

from celery_ckpt import CheckpointStore, MemoryCheckpointStore
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.records import RunRecord, StartResult
from celery_ckpt.runtime.attempt import start
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.testing import FakeClock, make_run

TTL = 30.0


class LateStore(MemoryCheckpointStore):
    """Begins an attempt immediately, and replies when most or all of its lease has passed."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__(clock=clock)
        self._wait = lambda: clock.advance(seconds)

    def start_run(self, *args: Any, **kwargs: Any) -> StartResult:
        start = super().start_run(*args, **kwargs)
        self._wait()
        return start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of the store and of the process that waits for it."""
    clock = FakeClock()
    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=lambda: clock.now().timestamp()))
    return clock


def begun(store: MemoryCheckpointStore, clock: FakeClock) -> StartResult:
    context: Any = SimpleNamespace(store=store, owner="me", settings=SimpleNamespace(lease_ttl=TTL))
    return start._begun(context, RunRecord(agent_id="a", run_id="r", created_at=clock.now()), False)


def test_a_lease_that_expires_soon_is_renewed_before_the_body_begins(clock: FakeClock) -> None:
    store = LateStore(clock, 0.9 * TTL)
    begun(store, clock)
    left = store.holder("a").expires_at - clock.now()
    assert left.total_seconds() == TTL


def test_an_attempt_whose_lease_was_taken_over_does_not_begin(clock: FakeClock) -> None:
    class Overtaken(LateStore):
        def start_run(self, *args: Any, **kwargs: Any) -> StartResult:
            start = super().start_run(*args, **kwargs)
            self.acquire("a", "another", 30)
            return start

    with pytest.raises(start._Busy):
        begun(Overtaken(clock, 1.1 * TTL), clock)


@pytest.fixture
def sent_later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds after which a message is published again."""
    seconds: list[float] = []
    monkeypatch.setattr(start, "publish_later", lambda task, after: seconds.append(after))
    return seconds


def delivered(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, outcome: type[Exception] = Ignore
) -> None:
    """Deliver a run while another process has the lease of its agent."""
    context = SimpleNamespace(store=store, owner="me", settings=SimpleNamespace(lease_ttl=TTL))
    monkeypatch.setattr(start.AppContext, "of", lambda app: context)
    request = SimpleNamespace(
        id="r",
        headers={"ckpt_agent_id": "a"},
        properties={},
        ckpt_recorded=True,
        retries=0,
        delivery_info={},
    )
    task = SimpleNamespace(app=None, name="t", request=request, retention_limits={})
    with pytest.raises(outcome):
        start.start(task)


ENVELOPE = {"text": "[]"}
ANOTHER_OWNER = "host/boot/1/2/3"


@pytest.mark.parametrize(
    ("envelope", "owner", "seconds"),
    [
        pytest.param(ENVELOPE, "rekey", [1.0], id="held by a tool"),
        pytest.param(ENVELOPE, ANOTHER_OWNER, [], id="recorded"),
        pytest.param({}, ANOTHER_OWNER, [5.0], id="recorded without its message"),
        pytest.param(None, ANOTHER_OWNER, [5.0], id="not recorded"),
    ],
)
def test_a_delivery_for_a_busy_agent_is_dropped_only_if_it_can_be_published_again(
    envelope: dict[str, Any] | None,
    owner: str,
    seconds: list[float],
    sent_later: list[float],
    monkeypatch,
) -> None:
    store = MemoryCheckpointStore()
    if envelope is not None:
        store.add_run(make_run("a", "r", envelope=envelope))
    store.acquire("a", owner, TTL)
    delivered(store, monkeypatch)
    assert sent_later == seconds


@pytest.mark.parametrize(("envelope", "seconds"), [(ENVELOPE, []), (None, [5.0])])
def test_a_delivery_of_a_blocked_run_is_dropped_only_if_it_can_be_published_again(
    envelope: dict[str, Any] | None, seconds: list[float], sent_later: list[float], monkeypatch
) -> None:
    """Its agent was deleted and another run has begun since: this message is the only copy."""
    store = MemoryCheckpointStore()
    store.start_run(make_run("a", "another"), ANOTHER_OWNER, TTL)
    if envelope is not None:
        store.add_run(make_run("a", "r", envelope=envelope))
    delivered(store, monkeypatch)
    assert sent_later == seconds


@pytest.mark.parametrize(
    ("state", "status"),
    [("REVOKED", "cancelled"), ("SUCCESS", "succeeded"), ("FAILURE", "failed")],
)
def test_a_duplicate_message_of_an_ended_and_deleted_run_is_not_executed(
    state: str, status: str, monkeypatch
) -> None:
    settled: list[str] = []
    monkeypatch.setattr(start, "settle", lambda attempt: settled.append(attempt.run_record.status))
    backend = SimpleNamespace(get_state=lambda task_id: state)
    task = SimpleNamespace(backend=backend, request=SimpleNamespace(id="r"))
    context = SimpleNamespace(lease_renewer=SimpleNamespace(discard=lambda held: None))
    attempt: Any = SimpleNamespace(task=task, context=context, held=None, run_record=make_run("a", "r"))
    with pytest.raises(Ignore):
        start._restore_record(attempt)
    assert settled == [status]


def test_an_unreadable_delivery_for_a_busy_agent_is_published_later(
    sent_later: list[float], monkeypatch
) -> None:
    store = MemoryCheckpointStore()
    store.add_run(make_run("a", "r", envelope={"text": "plain"}))
    store.acquire("a", ANOTHER_OWNER, TTL)
    delivered(EncryptedStore(store, base64.b64encode(bytes(32)).decode()), monkeypatch)
    assert sent_later == [5.0]


def test_a_delivery_that_can_neither_begin_nor_be_published_returns_to_its_queue(
    monkeypatch,
) -> None:
    """A failure would have been reported for a run that continues later."""

    class UnavailableStore(MemoryCheckpointStore):
        def start_run(self, *args: Any, **kwargs: Any) -> StartResult:
            raise StoreUnavailable(where="there", reason="unavailable")

    def publish_later(task: Any, seconds: float) -> None:
        raise OperationalError("the broker is unavailable too")

    monkeypatch.setattr(start, "publish_later", publish_later)
    delivered(UnavailableStore(), monkeypatch, Reject)
