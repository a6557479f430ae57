"""The kit's faults, in stores that several threads write to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing import Fault, FaultyStore, make_checkpoint

WRITES = 32


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def times_met(at: int, when: Any) -> int:
    """How often the fault at that write is met while eight threads write."""
    met: list[int] = []
    store = FaultyStore(MemoryCheckpointStore(), Fault(at, when, lambda: met.append(1)))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.save(make_checkpoint(f"agent {n}")), range(WRITES)))
    assert store.writes == WRITES
    return len(met)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_happens_once_however_many_threads_write(when) -> None:
    assert [times_met(at, when) for at in range(1, WRITES + 1)] == [1] * WRITES
