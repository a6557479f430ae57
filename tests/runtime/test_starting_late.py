"""A store that answers late: what an attempt was given is checked before it is relied on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.records import RunRecord, Start
from celery_ckpt.runtime import starting
from celery_ckpt.testing import FakeClock

TTL = 30.0


class LateStore(MemoryCheckpointStore):
    """Begins an attempt at once, and says so when most of its lease, or all of it, is over."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__(clock=clock)
        self._wait = lambda: clock.advance(seconds)

    def start_run(self, *args: Any, **kwargs: Any) -> Start:
        start = super().start_run(*args, **kwargs)
        self._wait()
        return start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The time of the store and of whoever waits for it."""
    clock = FakeClock()
    monkeypatch.setattr(starting, "time", SimpleNamespace(monotonic=lambda: clock.now().timestamp()))
    return clock


def begun(store: MemoryCheckpointStore, clock: FakeClock) -> Start:
    context: Any = SimpleNamespace(store=store, owner="me", settings=SimpleNamespace(lease_ttl=TTL))
    return starting._begun(context, RunRecord(agent_id="a", run_id="r", created_at=clock.now()))


def test_a_lease_of_which_little_is_left_is_renewed_before_the_body_begins(clock: FakeClock) -> None:
    store = LateStore(clock, 0.9 * TTL)
    begun(store, clock)
    left = store.holder("a").expires_at - clock.now()
    assert left.total_seconds() == TTL


def test_an_attempt_whose_lease_was_taken_meanwhile_does_not_begin(clock: FakeClock) -> None:
    class Overtaken(LateStore):
        def start_run(self, *args: Any, **kwargs: Any) -> Start:
            start = super().start_run(*args, **kwargs)
            self.acquire("a", "another", 30)
            return start

    with pytest.raises(starting._Busy):
        begun(Overtaken(clock, 1.1 * TTL), clock)
