"""The contract of ``pin``, ``policy`` and ``set_policy``."""

from __future__ import annotations

import pytest

from celery_ckpt.errors import InvalidName
from celery_ckpt.retention.policy import Rules
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import ContractFixtures, judged, saved, sweep
from celery_ckpt.testing.factories import make_checkpoint


class PoliciesContract(ContractFixtures):
    """Pins and limits of an agent are kept, and pruning observes them."""

    def test_a_checkpoint_can_be_pinned_as_it_is_saved(self, store: CheckpointStore) -> None:
        pinned = make_checkpoint("agent", metadata={"pin": "before-deploy"})
        store.save(pinned)
        history = saved(store, "agent", 3, pinned)
        sweep(store, Rules(keep=1))

        assert [(one.id, one.pin) for one in store.history("agent")] == [
            (history[-1].id, None),
            (pinned.id, "before-deploy"),
        ]
        assert store.load(pinned.id) == pinned

    def test_a_pinned_checkpoint_with_a_long_state_is_kept(self, store: CheckpointStore) -> None:
        pinned = make_checkpoint("agent", state={"long": "x" * 5000}, metadata={"pin": "mine"})
        store.save(pinned)
        history = saved(store, "agent", 3, pinned)
        sweep(store, Rules(keep=1))

        assert store.list("agent") == [history[-1], pinned]

    def test_a_checkpoint_can_be_pinned_and_unpinned_later(self, store: CheckpointStore) -> None:
        first, second, third = saved(store, "agent", 3)
        assert store.pin(first.id, "mine")
        assert store.history("agent")[-1].pin == "mine"
        sweep(store, Rules(keep=1))
        assert store.list("agent") == [third, first]

        assert store.pin(first.id, None)
        sweep(store, Rules(keep=1))
        assert store.list("agent") == [third]
        assert store.policy("agent") == AgentPolicy()
        assert not store.pin(second.id, "too late")
        with pytest.raises(InvalidName, match="label"):
            store.pin(third.id, "")

    def test_a_pin_saved_with_the_checkpoint_can_be_removed(self, store: CheckpointStore) -> None:
        pinned = make_checkpoint("agent", metadata={"pin": "old"})
        store.save(pinned)
        assert store.pin(pinned.id, None)
        assert store.history("agent")[0].pin is None
        assert store.pin(pinned.id, "old")
        assert (store.history("agent")[0].pin, store.policy("agent")) == ("old", AgentPolicy())
        store.pin(pinned.id, None)
        store.remove("agent", [pinned.id])
        assert store.policy("agent") == AgentPolicy()

    def test_a_checkpoint_pinned_during_a_sweep_is_kept(self, store: CheckpointStore) -> None:
        first, *_ = saved(store, "agent", 3)
        plans = judged(store, Rules(keep=1))
        assert store.pin(first.id, "just in time")
        store.apply(plans)

        assert store.load(first.id) == first

    def test_a_policy_is_replaced_only_if_it_is_what_was_read(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        assert not store.set_policy("agent", AgentPolicy(), AgentPolicy(keep=1))
        assert list(store.agents()) == []
        saved(store, "agent", 1)

        assert store.set_policy(
            "agent", AgentPolicy(), AgentPolicy(keep=1, max_age=5.5, pins={"ä {b}": "x"})
        )
        assert not other_store.set_policy("agent", AgentPolicy(), AgentPolicy(keep=2))
        assert other_store.policy("agent") == AgentPolicy(keep=1, max_age=5.5, pins={"ä {b}": "x"})
        assert other_store.set_policy("agent", store.policy("agent"), AgentPolicy())
        assert store.policy("agent") == AgentPolicy()
        store.delete("agent")
        assert store.policy("agent") == AgentPolicy()
