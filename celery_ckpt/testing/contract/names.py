"""The contract on the names of agents, and on ids."""

from __future__ import annotations

import pytest

from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import ContractFixtures
from celery_ckpt.testing.factories import make_checkpoint

STRANGE_NAMES = [
    "../../etc/passwd", "/", ".", "..", "a/b", "a\\b", "a b", "%7B", "{a}", "}{", "a:b", "a*", "ключ",
    "名前", "\x00", "a\nb", "-", "CON", "agents", "é", "e\u0301", "x" * 512, "😀" * 100, "' OR 1=1 --",
]  # fmt: skip


class NamesContract(ContractFixtures):
    """Any valid name is stored as it is; invalid ones are refused."""

    @pytest.mark.parametrize("name", STRANGE_NAMES, ids=range(len(STRANGE_NAMES)))
    def test_any_valid_text_can_be_an_agent_name(self, store: CheckpointStore, name: str) -> None:
        others = [make_checkpoint(other) for other in STRANGE_NAMES if other != name]
        for checkpoint in others:
            store.save(checkpoint)
        saved = make_checkpoint(name)
        store.save(saved)

        assert store.load_latest(name) == saved == store.load(saved.id)
        assert sorted(store.agents()) == sorted(STRANGE_NAMES)
        assert store.delete(name) == 1
        assert sorted(store.agents()) == sorted(set(STRANGE_NAMES) - {name})
        assert [store.load_latest(c.agent_id) for c in others] == others

    @pytest.mark.parametrize("name", ["", "x" * 513, "\ud800"])
    def test_an_invalid_agent_name_is_a_value_error(self, store: CheckpointStore, name: str) -> None:
        calls = (store.load_latest, store.list, store.history, store.delete, store.holder, store.runs)
        for call in calls:
            with pytest.raises(ValueError, match="agent_id"):
                call(name)
        with pytest.raises(ValueError, match="agent_id"):
            store.acquire(name, "owner", 1)
        with pytest.raises(ValueError, match="agent_id"):
            store.prune(name, 1)
        with pytest.raises(ValueError, match="agent_id"):
            make_checkpoint(name)

    @pytest.mark.parametrize("checkpoint_id", ["", "x" * 513, "\ud800"])
    def test_an_invalid_checkpoint_id_is_a_value_error(
        self, store: CheckpointStore, checkpoint_id: str
    ) -> None:
        with pytest.raises(ValueError, match="checkpoint id"):
            store.load(checkpoint_id)
