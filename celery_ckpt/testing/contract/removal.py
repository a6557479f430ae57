"""The contract of ``prune``, ``remove``, ``delete`` and ``agents``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures
from celery_ckpt.testing.factories import (
    make_checkpoint,
    make_conversation,
    make_message,
    make_run,
    make_step,
)


class RemovalContract(ContractFixtures):
    """Exactly the checkpoints or agents that were named are deleted."""

    def test_pruning_keeps_the_newest(self, store: CheckpointStore) -> None:
        saved = [make_checkpoint("agent", iteration=i) for i in range(10)]
        for checkpoint in saved:
            store.save(checkpoint)

        assert store.prune("agent", 3) == 7
        assert store.list("agent") == saved[:-4:-1]
        assert store.load(saved[0].id) is None
        assert store.prune("agent", 3) == 0

    def test_pruning_follows_the_order_of_saving_not_the_clock(self, store: CheckpointStore) -> None:
        day = datetime(2026, 1, 1, tzinfo=UTC)
        saved = [
            make_checkpoint().model_copy(update={"created_at": day - timedelta(days=days)})
            for days in range(3)
        ]
        for checkpoint in saved:
            store.save(checkpoint)

        store.prune("agent", 1)

        assert store.list("agent") == [saved[-1]]

    def test_a_negative_number_to_keep_is_refused(self, store: CheckpointStore) -> None:
        store.save(make_checkpoint())

        with pytest.raises(ValueError, match="keep"):
            store.prune("agent", -1)
        with pytest.raises(ValueError, match="limit"):
            store.list("agent", limit=-1)
        with pytest.raises(ValueError, match="checkpoint id"):
            store.remove("agent", ["\ud800"])
        assert len(store.list("agent")) == 1

    def test_pruning_one_agent_does_not_change_the_others(self, store: CheckpointStore) -> None:
        for iteration in range(5):
            store.save(make_checkpoint("one", iteration=iteration))
            store.save(make_checkpoint("two", iteration=iteration))

        assert store.prune("one", 2) == 3
        assert (len(store.list("one")), len(store.list("two"))) == (2, 5)

    def test_kept_checkpoints_load_after_those_that_wrote_their_messages_are_removed(
        self, store: CheckpointStore
    ) -> None:
        conversation, saved = make_conversation(0), []
        for iteration in range(20):
            conversation.append(make_message())
            saved.append(make_checkpoint("agent", conversation, iteration))
            store.save(saved[-1])

        store.prune("agent", 2)
        conversation.append(make_message())
        saved.append(make_checkpoint("agent", conversation, 20))
        store.save(saved[-1])

        assert store.list("agent") == saved[:-4:-1]

    def test_an_agent_pruned_to_nothing_can_be_saved_again(self, store: CheckpointStore) -> None:
        conversation = make_conversation(5)
        for iteration in range(3):
            store.save(make_checkpoint("agent", conversation, iteration))

        assert store.prune("agent", 0) == 3
        assert store.load_latest("agent") is None
        assert store.list("agent") == []
        conversation.append(make_message())
        again = make_checkpoint("agent", conversation)
        store.save(again)
        assert store.list("agent") == [again]

    def test_a_compacted_history_can_be_pruned(self, store: CheckpointStore) -> None:
        conversation = make_conversation(40)
        store.save(make_checkpoint("agent", conversation))
        saved = []
        for _ in range(5):
            kept = conversation.messages
            conversation.replace([kept[0], make_message("summary"), *kept[-3:]])
            conversation.append(make_message())
            saved.append(make_checkpoint("agent", conversation))
            store.save(saved[-1])

        assert store.prune("agent", 2) == 4
        assert store.list("agent") == saved[:-3:-1]

    def test_any_checkpoints_can_be_removed(self, store: CheckpointStore) -> None:
        conversation, saved = make_conversation(2), []
        for iteration in range(6):
            conversation.append(make_message())
            saved.append(make_checkpoint("agent", conversation, iteration))
            store.save(saved[-1])

        gone = [saved[1].id, saved[5].id, "never-there"]

        assert store.remove("agent", gone) == 2
        assert store.remove("agent", gone) == 0
        assert store.load_latest("agent") == saved[4]
        assert store.list("agent") == [saved[4], saved[3], saved[2], saved[0]]

    def test_another_agents_checkpoint_is_not_removed(self, store: CheckpointStore) -> None:
        native = make_checkpoint("agent")
        foreign = Checkpoint(**{**make_checkpoint("agent").__dict__, "id": "an id of its own"})
        for checkpoint in (native, foreign, make_checkpoint("other")):
            store.save(checkpoint)

        assert store.remove("other", [native.id, foreign.id]) == 0
        assert store.load(native.id) == native
        assert store.load(foreign.id) == foreign

    def test_an_id_that_was_removed_may_be_saved_again(self, store: CheckpointStore) -> None:
        first, second = make_checkpoint(), make_checkpoint()
        store.save(first)
        store.save(second)
        store.remove("agent", [first.id])

        store.save(first)

        assert store.list("agent") == [first, second]

    @pytest.mark.parametrize("agent_id", ["agent", "a*", "{x}"])
    def test_deleting_an_agent_leaves_nothing_behind(
        self, store: CheckpointStore, agent_id: str
    ) -> None:
        other = make_checkpoint("other")
        store.save(other)
        saved = make_checkpoint(agent_id)
        store.save(saved)
        store.save(make_checkpoint(agent_id))
        store.add_run(make_run(agent_id, "run"))
        store.record_step(make_step(agent_id))
        store.save(Checkpoint(**{**make_checkpoint(agent_id).__dict__, "id": "an id from elsewhere"}))
        store.acquire(agent_id, "owner", LONG_TTL)

        assert store.delete(agent_id) == 3

        assert store.load_latest(agent_id) is None
        assert store.load(saved.id) is None
        assert (store.list(agent_id), store.steps(agent_id, "run"), store.runs(agent_id)) == (
            [],
            [],
            [],
        )
        assert store.holder(agent_id) is None
        assert list(store.agents()) == ["other"]
        assert store.load_latest("other") == other
        assert store.delete(agent_id) == 0
        assert list(store.findings()) == []

    def test_a_deleted_agent_that_a_process_writes_again_is_listed(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        verbs: list[Callable[[], object]] = [
            lambda: store.acquire("agent", "owner", LONG_TTL),
            lambda: store.add_run(make_run("agent", "run")),
            lambda: store.record_step(make_step("agent")),
            lambda: store.start_run(make_run("agent", "run"), "owner", LONG_TTL),
        ]
        for take_up in verbs:
            take_up()
            other_store.delete("agent")
            take_up()
            assert list(other_store.agents()) == ["agent"]
            other_store.delete("agent")

    def test_a_deleted_agent_can_be_saved_again_by_a_process_that_knew_it(
        self, store: CheckpointStore
    ) -> None:
        conversation = make_conversation(8)
        store.save(make_checkpoint("agent", conversation))
        store.delete("agent")
        store.save(make_checkpoint("agent", make_conversation(9)))

        conversation.append(make_message())
        again = make_checkpoint("agent", conversation)
        store.save(again)

        assert store.load_latest("agent") == again

    def test_a_checkpoint_that_another_process_restored_is_not_used_as_a_base(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        conversation = make_conversation(3)
        for _ in range(3):
            conversation.append(make_message())
            saved = make_checkpoint("agent", conversation)
            store.save(saved)
        other_store.delete("agent")
        other_store.save(make_checkpoint("agent", make_conversation(7)))
        other_store.save(Checkpoint.from_bytes(saved.to_bytes()))

        conversation.append(make_message())
        later = make_checkpoint("agent", conversation)
        store.save(later)

        assert other_store.load_latest("agent") == later
        assert other_store.load(saved.id) == saved

    def test_the_order_continues_after_everything_was_pruned(self, store: CheckpointStore) -> None:
        store.save(make_checkpoint("agent"))
        store.save(make_checkpoint("agent"))
        [latest, _] = store.history("agent")
        store.prune("agent", 0)
        store.save(make_checkpoint("agent"))

        [info] = store.history("agent")
        assert info.seq > latest.seq

    def test_all_agents_are_listed_once(self, store: CheckpointStore) -> None:
        names = {f"agent-{number}" for number in range(40)}
        for name in names:
            store.save(make_checkpoint(name))
            store.save(make_checkpoint(name))
        store.add_run(make_run("with-a-run"))
        store.record_step(make_step("with-a-step"))
        store.acquire("with-a-lease", "owner", LONG_TTL)

        assert sorted(store.agents()) == sorted(names | {"with-a-run", "with-a-step", "with-a-lease"})
