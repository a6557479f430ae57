"""The contract of ``save``, ``load``, ``load_latest``, ``list`` and ``history``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from celery_ckpt.checkpoint import Checkpoint, Entry
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import AlreadyExists, CheckpointTooLarge
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.messages import Message
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import ContractFixtures
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_message

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "plain"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1.0}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": ""},
    {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}", "status": "completed"},
    {"type": "reasoning", "id": "r", "encrypted_content": "x==", "summary": []},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "...", "signature": "EqQB=="},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"q": [1, 2.5, True, None, {"x": {}}]}},
        {"type": "block_of_the_future", "deep": [[[[{"": ""}]]]]}]},
    {"big": 10**60, "small": -(2**70), "floats": [1e22, -0.0, 5e-324, 0.1]},
    {"text": "\u2028\x00\x7f\n\"\\ \U0001f600"},
    {},
]  # fmt: skip


class CheckpointsContract(ContractFixtures):
    """A loaded checkpoint equals the one that was saved."""

    def test_a_loaded_checkpoint_equals_the_saved_one(self, store: CheckpointStore) -> None:
        conversation = Conversation(max_tokens=77, messages=MESSAGES)
        saved = make_checkpoint(
            "agent",
            conversation,
            42,
            state={"plan": ["a", {"b": None}], "n": 1.5},
            event=CheckpointEvent.LLM_RESPONSE,
            run_id="run-1",
            metadata={"phase": "execute", "ключ": "é\n"},
            run_metadata={"ключ": "e"},
        )

        store.save(saved)

        loaded = store.load_latest("agent")
        assert loaded == saved
        assert loaded is not None
        assert [m.to_dict() for m in loaded.conversation] == MESSAGES
        assert str([m.to_dict() for m in loaded.conversation]) == str(MESSAGES)
        assert loaded.created_at.tzinfo == UTC

    def test_a_checkpoint_is_loaded_by_its_id(self, store: CheckpointStore) -> None:
        first, second = make_checkpoint("one"), make_checkpoint("two")
        store.save(first)
        store.save(second)

        assert store.load(first.id) == first
        assert store.load(second.id) == second

    def test_a_checkpoint_with_a_foreign_id_is_found(self, store: CheckpointStore) -> None:
        fields = make_checkpoint("agent").__dict__
        for checkpoint_id in ("a", "my id/../x", "7e57-id", "é\n"):
            saved = Checkpoint(**{**fields, "id": checkpoint_id})
            store.save(saved)
            assert store.load(checkpoint_id) == saved

    def test_a_long_conversation_is_saved_in_one_call(self, store: CheckpointStore) -> None:
        saved = make_checkpoint("agent", make_conversation(9000))
        store.save(saved)

        assert store.load_latest("agent") == saved

    def test_an_empty_conversation_is_saved_and_loaded(self, store: CheckpointStore) -> None:
        first, second = (make_checkpoint("agent", Conversation(), n) for n in (1, 2))
        store.save(first)
        store.save(second)

        assert store.load_latest("agent") == second
        assert store.list("agent") == [second, first]
        assert store.prune("agent", 1) == 1

    def test_reading_an_unknown_agent_or_id_finds_nothing(self, store: CheckpointStore) -> None:
        store.save(make_checkpoint("agent"))

        assert store.load_latest("unknown") is None
        assert store.load("bad-id") is None
        assert store.load(make_checkpoint("agent").id) is None
        assert store.list("unknown") == []
        assert store.history("unknown") == []

    def test_list_returns_one_agents_checkpoints_newest_first(self, store: CheckpointStore) -> None:
        saved = [make_checkpoint("agent", iteration=i) for i in range(5)]
        for checkpoint in saved:
            store.save(checkpoint)
        store.save(make_checkpoint("other"))

        assert store.list("agent") == saved[::-1]
        assert store.list("agent", limit=2) == saved[:-3:-1]
        assert store.list("agent", limit=0) == []
        assert [info.id for info in store.history("agent")] == [c.id for c in saved[::-1]]

    def test_checkpoints_are_ordered_by_save_not_by_clock(self, store: CheckpointStore) -> None:
        day = datetime(2026, 1, 1, tzinfo=UTC)
        later, earlier, same = (
            Checkpoint(**{**make_checkpoint("agent").__dict__, "created_at": at})
            for at in (day.replace(year=2030), day, day)
        )
        for checkpoint in (later, earlier, same):
            store.save(checkpoint)

        assert store.load_latest("agent") == same
        assert store.list("agent") == [same, earlier, later]

    def test_the_history_agrees_with_the_checkpoints(self, store: CheckpointStore) -> None:
        saved = make_checkpoint(
            iteration=3, run_id="r", event=CheckpointEvent.ITERATION, metadata={"a": "b"}
        )
        store.save(saved)

        [info] = store.history("agent")

        assert (info.id, info.iteration, info.created_at) == (saved.id, 3, saved.created_at)
        assert (info.run_id, info.event, info.metadata) == ("r", CheckpointEvent.ITERATION, {"a": "b"})

    def test_saving_an_equal_checkpoint_again_does_nothing(self, store: CheckpointStore) -> None:
        first, second = make_checkpoint(), make_checkpoint()
        store.save(first)
        store.save(second)

        store.save(first)
        store.save(Checkpoint(**first.__dict__))

        assert store.list("agent") == [second, first]

    def test_saving_different_content_under_an_existing_id_is_refused(
        self, store: CheckpointStore
    ) -> None:
        saved = make_checkpoint("agent")
        store.save(saved)

        for change in ({"iteration": 9}, {"conversation": make_conversation()}, {"agent_id": "other"}):
            with pytest.raises(AlreadyExists):
                store.save(Checkpoint(**{**saved.__dict__, **change}))

        assert store.list("agent") == [saved]
        assert store.list("other") == []

    def test_checkpoints_are_compared_as_json(self, store: CheckpointStore) -> None:
        saved = make_checkpoint("agent", state={"n": 1, "m": 2})
        store.save(saved)

        store.save(Checkpoint(**{**saved.__dict__, "state": {"m": 2, "n": 1}}))
        for state in ({"n": True, "m": 2}, {"n": 1.0, "m": 2}):
            with pytest.raises(AlreadyExists):
                store.save(Checkpoint(**{**saved.__dict__, "state": state}))

        assert store.list("agent") == [saved]

    def test_an_older_snapshot_of_a_longer_conversation_is_saved(self, store: CheckpointStore) -> None:
        conversation = make_conversation(2)
        early = make_checkpoint("agent", conversation)
        for _ in range(150):
            conversation.append(make_message())
        late = make_checkpoint("agent", conversation)
        store.save(late)

        store.save(early)

        assert store.list("agent") == [early, late]

    def test_every_snapshot_of_a_growing_conversation_is_kept(self, store: CheckpointStore) -> None:
        conversation, saved = make_conversation(0), []
        for iteration in range(12):
            conversation.append(make_message())
            saved.append(make_checkpoint("agent", conversation, iteration))
            store.save(saved[-1])

        assert store.list("agent") == saved[::-1]
        assert [store.load(checkpoint.id) for checkpoint in saved] == saved

    def test_a_compaction_does_not_change_earlier_checkpoints(self, store: CheckpointStore) -> None:
        conversation = make_conversation(30)
        before = make_checkpoint("agent", conversation)
        store.save(before)

        kept = conversation.messages
        conversation.replace([kept[0], make_message("summary"), *kept[-5:]])
        after = make_checkpoint("agent", conversation)
        store.save(after)
        conversation.append(make_message())
        later = make_checkpoint("agent", conversation)
        store.save(later)

        assert store.list("agent") == [later, after, before]

    def test_a_conversation_replaced_before_each_save_is_kept_exactly(
        self, store: CheckpointStore
    ) -> None:
        saved = []
        for count in (3, 1, 5, 0, 4):
            messages = [{"role": "user", "content": str(n % 3)} for n in range(count)]
            saved.append(make_checkpoint("agent", Conversation(messages=messages)))
            store.save(saved[-1])

        assert store.list("agent") == saved[::-1]

    def test_the_entry_of_an_iteration_is_kept(self, store: CheckpointStore) -> None:
        conversation = make_conversation(4)
        entry = Entry(conversation=conversation, state={"at": "entry"})
        conversation.append(make_message())
        inside = make_checkpoint("agent", conversation, entry=entry, state={"at": "inside"})
        store.save(inside)

        conversation.replace([Message.system("summary"), conversation.messages[-1]])
        compacted = make_checkpoint("agent", conversation, entry=entry)
        store.save(compacted)
        conversation.append(make_message())
        grown = make_checkpoint("agent", conversation, entry=entry)
        store.save(grown)

        assert store.list("agent") == [grown, compacted, inside]
        assert store.load(inside.id) == inside

    def test_changing_a_loaded_value_does_not_change_the_checkpoint(
        self, store: CheckpointStore
    ) -> None:
        saved = make_checkpoint(state={"list": [1]})
        store.save(saved)
        loaded = store.load_latest("agent")
        assert loaded is not None

        loaded.conversation.append(make_message())
        loaded.state["list"].append(2)
        loaded.metadata["a"] = "b"

        assert loaded == saved == store.load_latest("agent")

    def test_an_agent_continues_from_a_loaded_checkpoint(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        first = make_checkpoint("agent", make_conversation(5))
        store.save(first)

        loaded = other_store.load_latest("agent")
        assert loaded is not None
        conversation = loaded.conversation
        conversation.append(make_message())
        second = make_checkpoint("agent", conversation, 2)
        other_store.save(second)

        assert store.load_latest("agent") == second
        assert store.list("agent") == [second, first]

    def test_a_fork_shares_nothing_with_its_origin(self, store: CheckpointStore) -> None:
        origin = make_checkpoint("origin", make_conversation(5))
        store.save(origin)
        branch = origin.conversation
        branch.append(make_message())
        forked = make_checkpoint("fork", branch)
        store.save(forked)

        store.delete("origin")

        assert store.load_latest("fork") == forked

    def test_a_checkpoint_over_the_size_limit_is_refused_and_the_error_names_the_message(
        self, store: CheckpointStore
    ) -> None:
        conversation = make_conversation(2)
        fits = make_checkpoint("agent", conversation)
        store.save(fits)
        store.max_checkpoint_bytes = 2000  # type: ignore[attr-defined]
        conversation.append(make_message("x" * 3000))

        with pytest.raises(CheckpointTooLarge, match=r"message 3 \(role user\) with 3,0\d\d bytes"):
            store.save(make_checkpoint("agent", conversation))

        assert store.list("agent") == [fits]
