"""The leases that a process renews."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.runtime.process.lease_renewer import HeldLease, LeaseRenewer


class CountedLease:
    """A lease that counts how often its agent is read."""

    reads = 0

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id

    @property
    def agent_id(self) -> str:
        CountedLease.reads += 1
        return self._agent_id


@pytest.fixture
def lease_renewer(monkeypatch: pytest.MonkeyPatch) -> LeaseRenewer:
    app = Celery("keeping", broker="memory://", set_as_current=False)
    lease_renewer = LeaseRenewer(app, MemoryCheckpointStore(), 30)
    monkeypatch.setattr(lease_renewer, "_is_working", True)  # its threads are not needed
    return lease_renewer


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
