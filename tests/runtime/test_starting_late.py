"""A store that answers late: what an attempt was given is checked before it is relied on."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.clock import system_clock
from celery_ckpt.records import RunRecord, Start
from celery_ckpt.runtime import starting

TTL = 0.6


class LateStore(MemoryCheckpointStore):
    """Begins an attempt at once, and says so when most of its lease, or all of it, is over."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def start_run(self, *args: Any, **kwargs: Any) -> Start:
        start = super().start_run(*args, **kwargs)
        time.sleep(self._seconds)
        return start


def begun(store: MemoryCheckpointStore) -> Start:
    context: Any = SimpleNamespace(store=store, owner="me", settings=SimpleNamespace(lease_ttl=TTL))
    return starting._begun(context, RunRecord(agent_id="a", run_id="r", created_at=system_clock.now()))


def test_a_lease_of_which_little_is_left_is_renewed_before_the_body_begins() -> None:
    store = LateStore(0.9 * TTL)
    begun(store)
    left = store.holder("a").expires_at - system_clock.now()
    assert left.total_seconds() > TTL / 2


def test_an_attempt_whose_lease_was_taken_meanwhile_does_not_begin() -> None:
    class Overtaken(LateStore):
        def start_run(self, *args: Any, **kwargs: Any) -> Start:
            start = super().start_run(*args, **kwargs)
            self.acquire("a", "another", 30)
            return start

    with pytest.raises(starting._Busy):
        begun(Overtaken(1.1 * TTL))
