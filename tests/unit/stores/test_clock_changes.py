"""The machine's clock is set forward or back by hours, under the stores that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_ckpt import (
    CheckpointStore,
    FileCheckpointStore,
    MemoryCheckpointStore,
    SqliteCheckpointStore,
)
from celery_ckpt.errors import LeaseHeld, LeaseLost
from celery_ckpt.testing import FakeClock, make_checkpoint

HOURS = 5 * 3600.0
TTL = 30.0
STORES: dict[str, Callable[[Path, FakeClock], CheckpointStore]] = {
    "memory": lambda path, clock: MemoryCheckpointStore(clock=clock),
    "file": lambda path, clock: FileCheckpointStore(path, clock=clock),
    "sqlite": lambda path, clock: SqliteCheckpointStore.open(path / "store.db", clock=clock),
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=list(STORES))
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> Iterator[CheckpointStore]:
    with STORES[request.param](tmp_path, clock) as store:
        yield store


@pytest.mark.parametrize("jump", [HOURS, -HOURS])
def test_checkpoint_order_and_the_rights_of_the_holder_do_not_depend_on_the_clock(
    store: CheckpointStore, clock: FakeClock, jump: float
) -> None:
    lease = store.acquire("agent", "me", TTL)
    saved = []
    for iteration in (1, 2, 3):
        saved.append(make_checkpoint("agent", iteration=iteration))
        store.save(saved[-1], lease)
        clock.advance(jump if iteration == 1 else 0)
    assert store.list("agent") == saved[::-1]
    store.renew(lease, TTL)
    with pytest.raises(LeaseHeld) as held:
        store.acquire("agent", "other", TTL)
    assert held.value.seconds_left == TTL


def test_a_clock_set_ahead_allows_a_takeover_and_fences_the_holder(
    store: CheckpointStore, clock: FakeClock
) -> None:
    before = store.acquire("agent", "me", TTL)
    clock.advance(HOURS)
    after = store.acquire("agent", "other", TTL)
    assert after.token == before.token + 1
    with pytest.raises(LeaseLost):
        store.save(make_checkpoint("agent"), before)
    with pytest.raises(LeaseLost):
        store.renew(before, TTL)


def test_a_clock_set_back_does_not_block_the_lease_of_a_process_known_to_be_dead(
    store: CheckpointStore, clock: FakeClock
) -> None:
    dead = store.acquire("agent", "me", TTL)
    clock.advance(-HOURS)
    with pytest.raises(LeaseHeld) as held:
        store.acquire("agent", "other", TTL)
    assert held.value.seconds_left > HOURS
    assert store.acquire("agent", "other", TTL, over=dead).token == dead.token + 1
