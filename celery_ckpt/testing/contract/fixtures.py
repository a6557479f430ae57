"""What all parts of the contract use."""

from __future__ import annotations

import time

import pytest

from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.clock import FakeClock

#: How long a lease of the contract lives, where time cannot be made to pass.
SHORT_TTL = 0.05
LONG_TTL = 600.0
_DEADLINE = 10.0


class ContractFixtures:
    """The fixtures that a subclass may replace; ``store`` it must."""

    @pytest.fixture
    def store(self) -> CheckpointStore:
        """An empty store."""
        raise NotImplementedError("give a `store` fixture that returns an empty store")

    @pytest.fixture
    def other_store(self, store: CheckpointStore) -> CheckpointStore:
        """Another object on the same data."""
        return store

    @pytest.fixture
    def clock(self) -> FakeClock | None:
        """The clock of the store, if it can be moved."""
        return None


def pass_time(store: CheckpointStore, agent_id: str, clock: FakeClock | None) -> None:
    """Let the agent's lease end."""
    if clock is not None:
        clock.advance(SHORT_TTL + 1)
    deadline = time.monotonic() + _DEADLINE
    while store.holder(agent_id) is not None:
        assert time.monotonic() < deadline, "the lease did not end"
        time.sleep(SHORT_TTL / 10)
