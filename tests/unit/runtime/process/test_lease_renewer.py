"""The leases that a process renews."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from celery import Celery

from celery_ckpt import CheckpointStore, MemoryCheckpointStore
from celery_ckpt.errors import StoreError, StoreUnavailable
from celery_ckpt.records import Lease, StartResult
from celery_ckpt.runtime.process.lease_renewer import HeldLease, LeaseRenewer
from celery_ckpt.stores.wrapper import WrapperStore
from celery_ckpt.testing import FakeClock, make_run


class CountedLease:
    """A lease that counts how often its agent is read."""

    reads = 0

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id

    @property
    def agent_id(self) -> str:
        CountedLease.reads += 1
        return self._agent_id


TTL = 30.0


def renewer_of(store: CheckpointStore) -> LeaseRenewer:
    app = Celery("keeping", broker="memory://", set_as_current=False)
    lease_renewer = LeaseRenewer(app, store, TTL)
    lease_renewer._is_working = True  # its threads are not needed
    return lease_renewer


@pytest.fixture
def lease_renewer() -> LeaseRenewer:
    return renewer_of(MemoryCheckpointStore())


def held_lease(agent_id: str) -> Any:
    lease: Any = CountedLease(agent_id)
    return HeldLease(lease)


def test_is_renewing_does_not_read_the_leases_of_other_agents(
    lease_renewer: LeaseRenewer,
) -> None:
    for number in range(100):
        lease_renewer.add(held_lease(f"agent {number}"))
    CountedLease.reads = 0

    assert lease_renewer.is_renewing("agent 99")
    assert not lease_renewer.is_renewing("agent 100")
    assert CountedLease.reads == 0


def test_an_agent_is_renewed_until_the_last_of_its_leases_is_discarded(
    lease_renewer: LeaseRenewer,
) -> None:
    """An attempt that lost its lease may still be working when the next one begins."""
    lost, new = held_lease("agent"), held_lease("agent")
    lease_renewer.add(lost)
    lease_renewer.add(new)

    lease_renewer.discard(lost)
    lease_renewer.discard(lost)
    assert lease_renewer.is_renewing("agent")

    lease_renewer.discard(new)
    assert not lease_renewer.is_renewing("agent")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class RecordingStore(WrapperStore):
    """A store that records its calls, and is unavailable for some agents."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryCheckpointStore(clock=clock))
        self.batches: list[list[str]] = []
        self.moves: list[set[str]] = []
        self.unavailable_for: set[str] = set()

    def renew_many(self, leases: Sequence[Lease], ttl: float) -> list[Lease | StoreError]:
        self.batches.append([lease.agent_id for lease in leases])
        if self.unavailable_for & set(self.batches[-1]):
            raise StoreUnavailable(where="here", reason="a test")
        return super().renew_many(leases, ttl)

    def reschedule(self, due_times: Any, after: float, *on: Any) -> dict[str, int]:
        self.moves.append(set(due_times))
        return super().reschedule(due_times, after, *on)


@pytest.fixture
def store(clock: FakeClock) -> RecordingStore:
    return RecordingStore(clock)


def started(store: CheckpointStore, agent_id: str, owner: str = "me") -> StartResult:
    return store.start_run(make_run(agent_id, agent_id), owner, TTL)


def held(start: StartResult, **options: Any) -> HeldLease:
    assert start.lease is not None
    return HeldLease(start.lease, due_at=start.due_at, **options)


def test_the_leases_that_end_first_are_renewed_first_in_batches(
    store: RecordingStore, clock: FakeClock
) -> None:
    renewer, names = renewer_of(store), [f"agent {number}" for number in range(1200)]
    leases = []
    for name in names:
        leases.append(held(started(store, name)))
        clock.advance(0.001)
    for each in reversed(leases):
        renewer.add(each)

    renewer.renew_all()

    assert store.batches == [names[:500], names[500:1000], names[1000:]]
    assert {each.lease.expires_at for each in leases} == {store.holder("agent 0").expires_at}


def test_a_stolen_lease_among_hundreds_ends_only_its_own_attempt(
    store: RecordingStore, clock: FakeClock
) -> None:
    renewer, lost = renewer_of(store), list[str]()
    leases = {}
    for number in range(300):
        name = f"agent {number}"
        leases[name] = held(started(store, name), on_loss=lambda name=name: lost.append(name))
        renewer.add(leases[name])
    store.acquire("agent 7", "thief", TTL, over=leases["agent 7"].lease)

    renewer.renew_all()

    assert lost == ["agent 7"]
    assert [name for name, each in leases.items() if each.is_lost] == ["agent 7"]
    assert not renewer.is_renewing("agent 7")
    assert "agent 7" not in store.moves[0]


def test_a_batch_that_cannot_be_renewed_does_not_prevent_the_others(
    store: RecordingStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    renewer = renewer_of(store)
    for number in range(600):
        renewer.add(held(started(store, f"agent {number}")))
        clock.advance(0.001)
    store.unavailable_for = {"agent 3"}
    clock.advance(10)

    with caplog.at_level(logging.WARNING):
        renewer.renew_all()

    assert len(caplog.records) == 500
    assert [len(moved) for moved in store.moves] == [100]
    store.unavailable_for = set()
    renewer.renew_all()
    assert store.batches[2][0] == "agent 0", "the leases that were not renewed end first"


def test_an_agent_at_work_is_never_due(store: RecordingStore, clock: FakeClock) -> None:
    renewer = renewer_of(store)
    renewer.add(held(started(store, "agent")))

    for _ in range(10):
        clock.advance(TTL / 3)
        renewer.renew_all()
        assert store.count_due() == 0
    clock.advance(TTL)
    assert store.count_due() == 1, "and is due when its lease ends"


def test_a_finished_agent_is_unscheduled_although_its_deadline_was_moved(
    store: RecordingStore, clock: FakeClock
) -> None:
    renewer, only = renewer_of(store), held(started(store, "agent"))
    renewer.add(only)
    clock.advance(TTL / 3)
    renewer.renew_all()

    renewer.discard(only)
    renewer.unschedule(only)
    renewer.renew_all()

    clock.advance(10 * TTL)
    assert store.count_due() == 0


def test_a_deadline_that_another_process_has_set_is_not_moved(
    store: RecordingStore, clock: FakeClock
) -> None:
    renewer, mine = renewer_of(store), held(started(store, "agent"))
    renewer.add(mine)
    store.schedule("agent", 1)

    renewer.renew_all()

    clock.advance(1)
    assert store.count_due() == 1
    assert mine.due_at is None


def test_a_deadline_that_this_process_has_claimed_is_moved_again(
    store: RecordingStore, clock: FakeClock
) -> None:
    renewer = renewer_of(store)
    renewer.add(held(started(store, "agent")))
    clock.advance(TTL)
    [(_, claimed)] = store.claim_due(1, 10)

    assert renewer.adopt("agent", claimed)
    assert not renewer.adopt("another", claimed)
    renewer.renew_all()

    clock.advance(10)
    assert store.count_due() == 0


def test_a_store_that_cannot_reschedule_is_not_asked_to(store: RecordingStore) -> None:
    store.features = frozenset()
    renewer = renewer_of(store)
    start = started(store, "agent")
    renewer.add(held(start))

    renewer.renew_all()

    assert store.moves == []
    assert not renewer.adopt("agent", start.due_at)
