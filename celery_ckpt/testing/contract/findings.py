"""The contract of ``findings``."""

from __future__ import annotations

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.records import Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures, saved, sweep
from celery_ckpt.testing.factories import make_checkpoint, make_run


class FindingsContract(ContractFixtures):
    """A store that is used as intended has no findings; leftovers are found and repaired."""

    def test_a_store_in_use_has_no_findings(self, store: CheckpointStore) -> None:
        saved(store, "agent", 3)
        foreign = Checkpoint(**{**make_checkpoint("agent").__dict__, "id": "an id of its own"})
        store.save(foreign)
        store.start_run(make_run("running", "running"), "me", LONG_TTL)
        store.pin(foreign.id, "mine")
        sweep(store, Rules(keep=1))

        assert list(store.findings()) == []

    def test_a_schedule_entry_without_an_agent_is_found_and_removed(
        self, store: CheckpointStore
    ) -> None:
        for on in Schedule:
            store.schedule("unknown", LONG_TTL, on)

        assert [(found.subject, found.repaired) for found in store.findings()] == [
            ("unknown", False),
            ("unknown", False),
        ]
        assert all(found.repaired for found in store.findings(repair=True))
        assert list(store.findings()) == []
