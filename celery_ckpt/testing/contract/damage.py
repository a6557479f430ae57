"""What a store promises about damaged checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.retention.policy import Rules
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.findings import damage_in
from celery_ckpt.testing.contract.fixtures import ContractFixtures, sweep
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_message

#: Makes the stored checkpoint unreadable, but not its messages.
Spoil = Callable[[Checkpoint], object]


def history(store: CheckpointStore, agent_id: str = "agent", saves: int = 4) -> list[Checkpoint]:
    """Save and return checkpoints of a growing conversation."""
    conversation, saved = make_conversation(1), []
    for iteration in range(1, saves + 1):
        conversation.append(make_message())
        saved.append(make_checkpoint(agent_id, conversation, iteration))
        store.save(saved[-1])
    return saved


class DamageContract(ContractFixtures):
    """For stores whose data can be damaged from outside. ``other_store`` reads the damage first."""

    @pytest.fixture
    def spoil(self) -> Spoil:
        """Return a function that damages one stored checkpoint."""
        raise NotImplementedError("define a `spoil` fixture: a function that damages one checkpoint")

    def test_a_damaged_latest_checkpoint_is_an_error_that_names_it(
        self, store: CheckpointStore, other_store: CheckpointStore, spoil: Spoil
    ) -> None:
        latest = history(store)[-1]
        spoil(latest)
        with pytest.raises(CheckpointDamaged) as caught:
            other_store.load_latest("agent")
        assert (caught.value.agent_id, caught.value.checkpoint_id) == ("agent", latest.id)

    def test_an_agent_whose_only_checkpoint_is_damaged_is_not_new(
        self, store: CheckpointStore, other_store: CheckpointStore, spoil: Spoil
    ) -> None:
        [only] = history(store, saves=1)
        spoil(only)
        with pytest.raises(CheckpointDamaged):
            other_store.load_latest("agent")
        assert list(other_store.agents()) == ["agent"]

    @pytest.mark.parametrize("number", range(4))
    def test_damage_to_one_checkpoint_affects_no_other(
        self, store: CheckpointStore, other_store: CheckpointStore, spoil: Spoil, number: int
    ) -> None:
        saved, neighbours = history(store), history(store, "neighbour")
        spoil(saved[number])
        damaged = saved.pop(number)
        with pytest.raises(CheckpointDamaged, match=damaged.id):
            other_store.load(damaged.id)
        with pytest.raises(CheckpointDamaged, match=damaged.id):
            other_store.history("agent", limit=len(saved) + 1)
        with pytest.raises(CheckpointDamaged) as caught:
            other_store.list("agent")
        assert list(caught.value.readable) == saved[::-1]
        assert [other_store.load(one.id) for one in saved] == saved
        assert other_store.list("neighbour") == neighbours[::-1]

    def test_an_agent_continues_after_a_damaged_checkpoint(
        self, store: CheckpointStore, other_store: CheckpointStore, spoil: Spoil
    ) -> None:
        saved = history(store)
        spoil(saved[-1])
        later = make_checkpoint("agent", saved[-1].conversation, 5)
        other_store.save(later)
        assert other_store.load_latest("agent") == later
        assert other_store.prune("agent", 1) == 4
        assert other_store.list("agent") == [later]

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_sweep_skips_a_damaged_checkpoint(
        self, store: CheckpointStore, other_store: CheckpointStore, spoil: Spoil, number: int
    ) -> None:
        saved, neighbours = history(store, saves=2), history(store, "neighbour")
        spoil(saved[number])
        assert sweep(other_store, Rules(keep=3, max_age=3600)) == ["agent", "neighbour"]
        assert other_store.list("neighbour") == neighbours[:0:-1]
        with pytest.raises(CheckpointDamaged):
            other_store.load(saved[number].id)

    def test_doctor_names_a_damaged_checkpoint(
        self, store: CheckpointStore, other_store: CheckpointStore, spoil: Spoil
    ) -> None:
        damaged, *_ = history(store)
        history(store, "neighbour")
        assert list(damage_in(store)) == []
        spoil(damaged)
        [found] = damage_in(other_store)
        assert (found.kind, found.subject, damaged.id in found.what) == ("damaged", "agent", True)
