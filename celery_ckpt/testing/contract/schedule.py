"""The contract of ``schedule``, ``unschedule`` and ``claim_due``."""

from __future__ import annotations

from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures


class ScheduleContract(ContractFixtures):
    """Each scheduled agent becomes due once, for one caller."""

    def test_a_due_agent_is_claimed_by_one_caller(self, store: CheckpointStore) -> None:
        for name in ("a", "{b}", "c d"):
            store.schedule(name, 0)
        store.schedule("later", LONG_TTL)

        found = store.claim_due(10, LONG_TTL)

        assert sorted(name for name, _ in found) == ["a", "c d", "{b}"]
        assert store.claim_due(10, LONG_TTL) == []
        assert list(store.agents()) == []

    def test_an_agent_is_due_again_when_its_claim_expires(self, store: CheckpointStore) -> None:
        store.schedule("agent", 0)

        assert [name for name, _ in store.claim_due(1, -1)] == ["agent"]
        assert [name for name, _ in store.claim_due(1, -1)] == ["agent"]

    def test_unscheduling_removes_only_the_entry_that_was_read(self, store: CheckpointStore) -> None:
        first = store.schedule("agent", 0)
        second = store.schedule("agent", 0)

        assert first != second
        assert store.unschedule({"agent": first}) == 0
        assert store.unschedule({"agent": second, "unknown": second}) == 1
        assert store.unschedule({"agent": second}) == 0
        assert store.claim_due(10, LONG_TTL) == []

    def test_claim_due_returns_at_most_limit_agents(self, store: CheckpointStore) -> None:
        for number in range(7):
            store.schedule(f"agent-{number}", 0)

        found = [name for _ in range(3) for name, _ in store.claim_due(3, LONG_TTL)]

        assert len(found) == len(set(found)) == 7
