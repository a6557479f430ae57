"""The contract: what a watchdog looks at."""

from __future__ import annotations

from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures


class ScheduleContract(ContractFixtures):
    """Each agent that is watched has a moment; when it has come, one caller is told."""

    def test_an_agent_whose_moment_has_come_is_named_to_one_caller(
        self, store: CheckpointStore
    ) -> None:
        for name in ("a", "{b}", "c d"):
            store.schedule(name, 0)
        store.schedule("later", LONG_TTL)

        found = store.claim_due(10, LONG_TTL)

        assert sorted(name for name, _ in found) == ["a", "c d", "{b}"]
        assert store.claim_due(10, LONG_TTL) == []
        assert list(store.agents()) == []

    def test_an_agent_that_nobody_attends_to_comes_again(self, store: CheckpointStore) -> None:
        store.schedule("agent", 0)

        assert [name for name, _ in store.claim_due(1, -1)] == ["agent"]
        assert [name for name, _ in store.claim_due(1, -1)] == ["agent"]

    def test_watching_stops_only_if_nobody_set_another_moment(self, store: CheckpointStore) -> None:
        first = store.schedule("agent", 0)
        second = store.schedule("agent", 0)

        assert first != second
        assert store.unschedule({"agent": first}) == 0
        assert store.unschedule({"agent": second, "nobody": second}) == 1
        assert store.unschedule({"agent": second}) == 0
        assert store.claim_due(10, LONG_TTL) == []

    def test_no_more_agents_are_named_than_were_asked_for(self, store: CheckpointStore) -> None:
        for number in range(7):
            store.schedule(f"agent-{number}", 0)

        found = [name for _ in range(3) for name, _ in store.claim_due(3, LONG_TTL)]

        assert len(found) == len(set(found)) == 7
