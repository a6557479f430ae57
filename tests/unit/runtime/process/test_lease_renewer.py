"""What a process knows of the leases that it keeps."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.runtime.process.lease_renewer import HeldLease, LeaseRenewer


class CountedLease:
    """A lease that counts how often its agent is asked for."""

    reads = 0

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id

    @property
    def agent_id(self) -> str:
        CountedLease.reads += 1
        return self._agent_id


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> LeaseRenewer:
    app = Celery("keeping", broker="memory://", set_as_current=False)
    keeper = LeaseRenewer(app, MemoryCheckpointStore(), 30)
    monkeypatch.setattr(keeper, "_is_working", True)  # its threads are not needed
    return keeper


def hold_of(agent_id: str) -> Any:
    lease: Any = CountedLease(agent_id)
    return HeldLease(lease)


def test_whether_an_agent_is_kept_is_known_without_looking_at_the_others(keeper: LeaseRenewer) -> None:
    for number in range(100):
        keeper.keep(hold_of(f"agent {number}"))
    CountedLease.reads = 0

    assert keeper.is_keeping("agent 99")
    assert not keeper.is_keeping("agent 100")
    assert CountedLease.reads == 0


def test_an_agent_is_kept_until_the_last_of_its_leases_is_let_go(keeper: LeaseRenewer) -> None:
    """An attempt that lost its lease may still be at work when the next one begins."""
    lost, new = hold_of("agent"), hold_of("agent")
    keeper.keep(lost)
    keeper.keep(new)

    keeper.let_go(lost)
    keeper.let_go(lost)
    assert keeper.is_keeping("agent")

    keeper.let_go(new)
    assert not keeper.is_keeping("agent")
