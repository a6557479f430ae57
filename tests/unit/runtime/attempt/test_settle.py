"""What settling a run leaves scheduled for its agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.records import RunStatus
from celery_ckpt.runtime.attempt.settlement import settle
from celery_ckpt.testing import FakeClock, make_run

TTL = 30.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryCheckpointStore:
    return MemoryCheckpointStore(clock=clock)


def worked_on(store: MemoryCheckpointStore, agent_id: str, run_id: str) -> Any:
    """Return an attempt whose run has just ended."""
    start = store.start_run(make_run(agent_id, run_id, envelope={"text": "[]"}), "me", TTL)
    record = start.run.model_copy(update={"status": RunStatus.SUCCEEDED})
    lease_renewer = SimpleNamespace(unschedule=lambda held: store.unschedule({agent_id: held.due_at}))
    settings = SimpleNamespace(lease_ttl=TTL)
    context = SimpleNamespace(store=store, lease_renewer=lease_renewer, settings=settings)
    held = SimpleNamespace(lease=start.lease, due_at=start.due_at)
    return SimpleNamespace(context=context, run_record=record, held=held, is_readded=False)


def test_a_run_that_was_recorded_and_never_published_stays_scheduled_when_another_ends(
    store: MemoryCheckpointStore, clock: FakeClock
) -> None:
    store.add_run(make_run("named", "unsent", envelope={"text": "[]"}), due_in=30)
    settle(worked_on(store, "named", "sent"))

    clock.advance(31)
    assert [agent_id for agent_id, _ in store.claim_due(10, 1)] == ["named"]


def test_an_agent_named_by_its_only_run_is_unscheduled(
    store: MemoryCheckpointStore, clock: FakeClock
) -> None:
    settle(worked_on(store, "task", "task"))

    clock.advance(31)
    assert store.claim_due(10, 1) == []
