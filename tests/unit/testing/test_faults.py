"""``FaultyStore`` with several writing threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing import Fault, FaultyStore, make_checkpoint, make_step
from celery_ckpt.testing.faults import InjectedFault

WRITES = 32


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads switch as often as possible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def times_met(at: int, when: Any) -> int:
    """Return how often the fault at this write happens while eight threads write."""
    met: list[int] = []
    store = FaultyStore(MemoryCheckpointStore(), Fault(at, when, lambda: met.append(1)))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.save(make_checkpoint(f"agent {n}")), range(WRITES)))
    assert store.writes == WRITES
    return len(met)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_happens_once_although_many_threads_write(when) -> None:
    assert [times_met(at, when) for at in range(1, WRITES + 1)] == [1] * WRITES


def test_the_journal_describes_each_write() -> None:
    store = FaultyStore(MemoryCheckpointStore())
    lease = store.acquire("a", "me", 60)
    store.record_step(make_step("a", "r", name="plan"), lease)
    store.record_step(make_step("a", "r", iteration=3, name="llm:ask"), lease)
    store.save(make_checkpoint("a", iteration=3), lease)
    store.drop_steps("a", "r", first=1, last=3, lease=lease)
    store.release(lease)
    assert store.load_latest("a") is not None
    assert store.journal == [
        "acquire",
        "record of plan, before the first iteration",
        "record of llm:ask, iteration 3",
        "checkpoint, iteration 3",
        "removal of steps that no attempt needs",
        "release of the lease",
    ]
    assert store.writes == 6


def test_recording_and_saving_are_two_writes() -> None:
    inner = MemoryCheckpointStore()
    store = FaultyStore(inner, Fault(at=2))
    step, checkpoint = make_step("a", "r", name="plan"), make_checkpoint("a")
    assert isinstance(store.record_and_save(step, checkpoint), InjectedFault)
    assert store.journal == ["record of plan, before the first iteration", "checkpoint, iteration 1"]
    assert inner.steps("a", "r") == [step]
    assert inner.list("a") == []
