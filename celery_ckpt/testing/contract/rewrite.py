"""The contract on writing all of an agent anew."""

from __future__ import annotations

import pytest

from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import LeaseHeld, LeaseLost
from celery_ckpt.records import AgentContents, RunStatus
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures
from celery_ckpt.testing.factories import (
    changed_contents,
    make_checkpoint,
    make_conversation,
    make_message,
    make_run,
    make_step,
)


def _worked(store: CheckpointStore) -> Conversation:
    """An agent with some of everything, a part of it pruned; returns its conversation as it is now."""
    conversation = make_conversation(3)
    for number in range(4):
        conversation.append(make_message(f"turn {number}"))
        store.save(make_checkpoint("agent", conversation, number))
    kept = conversation.messages
    conversation.replace([kept[0], make_message("in short"), *kept[-2:]])
    store.save(make_checkpoint("agent", conversation, 4))
    store.prune("agent", 3)
    for run_id in ("one", "two"):
        store.add_run(make_run("agent", run_id, envelope={"n": run_id}))
        for key in ("a", "b"):
            store.record_step(make_step("agent", run_id, key, iteration=1, value=key))
    return conversation


def _contents(store: CheckpointStore) -> AgentContents:
    found: list[AgentContents] = []
    assert store.rewrite("agent", lambda contents: found.append(contents))
    return found[0]


class RewriteContract(ContractFixtures):
    """Everything of an agent can be written anew."""

    def test_all_of_an_agent_can_be_looked_at(self, store: CheckpointStore) -> None:
        _worked(store)
        contents = _contents(store)
        assert contents.checkpoints == store.list("agent")[::-1]
        assert contents.runs == store.runs("agent")
        steps = [*store.steps("agent", "one"), *store.steps("agent", "two")]
        assert contents.steps == steps

    def test_all_of_an_agent_can_be_replaced(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        _worked(store)
        louder = changed_contents(_contents(store))
        pins = [info.pin for info in store.history("agent")]

        assert store.rewrite("agent", changed_contents)

        for each in (store, other_store):
            assert each.list("agent") == louder.checkpoints[::-1]
            assert each.load_latest("agent") == louder.checkpoints[-1]
            assert [each.load(one.id) for one in louder.checkpoints] == louder.checkpoints
            assert each.runs("agent") == louder.runs
            assert each.steps("agent", "one") == louder.steps[:2]
            assert [info.pin for info in each.history("agent")] == pins

    def test_an_agent_that_was_rewritten_goes_on(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        conversation = _worked(store)
        seq = store.history("agent")[0].seq
        store.rewrite("agent", changed_contents)
        conversation.append(make_message("by who knew it before"))
        first = make_checkpoint("agent", conversation, 5)
        store.save(first)
        loaded = other_store.load_latest("agent")
        assert loaded == first
        going_on = loaded.conversation
        going_on.append(make_message("by who has read it"))
        second = make_checkpoint("agent", going_on, 6)
        other_store.save(second)
        assert store.list("agent", limit=2) == [second, first]
        assert [info.seq > seq for info in store.history("agent")[:2]] == [True, True]
        assert store.prune("agent", 1) == 4
        assert other_store.list("agent") == [second]

    def test_steps_may_be_given_other_keys(self, store: CheckpointStore) -> None:
        _worked(store)

        def renamed(contents: AgentContents) -> AgentContents:
            steps = [s.model_copy(update={"key": f"{s.key}!"}) for s in contents.steps]
            return AgentContents(contents.checkpoints, steps, contents.runs)

        store.rewrite("agent", renamed)
        assert [step.key for step in store.steps("agent", "two")] == ["a!", "b!"]
        assert store.drop_steps("agent", "two", first=1, last=1) == 2
        assert store.steps("agent", "two") == []
        assert len(store.steps("agent", "one")) == 2

    def test_steps_may_be_left_out_and_may_exchange_their_keys(self, store: CheckpointStore) -> None:
        _worked(store)

        def exchanged(contents: AgentContents) -> AgentContents:
            _, first_b, *rest = contents.steps
            last = rest.pop()
            steps = [
                first_b,
                *(step.model_copy(update={"key": "b"}) for step in rest),
                last.model_copy(update={"key": "a"}),
            ]
            return AgentContents(contents.checkpoints, steps, contents.runs)

        store.rewrite("agent", exchanged)
        assert [step.value for step in store.steps("agent", "one")] == ["b"]
        found = [(step.key, step.value) for step in store.steps("agent", "two")]
        assert found == [("b", "a"), ("a", "b")]

        store.rewrite("agent", lambda all_: AgentContents(all_.checkpoints, [], all_.runs))
        assert store.steps("agent", "one") == store.steps("agent", "two") == []
        store.record_step(make_step("agent", "one", "a"))
        assert len(store.steps("agent", "one")) == 1

    def test_what_was_removed_last_is_not_numbered_again(self, store: CheckpointStore) -> None:
        _worked(store)
        newest, *older = store.history("agent")
        store.remove("agent", [newest.id])
        store.rewrite("agent", changed_contents)
        store.save(make_checkpoint("agent"))
        assert store.history("agent")[0].seq > newest.seq
        assert [info.id for info in store.history("agent")[1:]] == [info.id for info in older]

    def test_whose_turn_it_is_stays(self, store: CheckpointStore) -> None:
        start = store.start_run(make_run("agent", "run", envelope={"e": 1}), "me", LONG_TTL)
        store.add_run(make_run("agent", "next"))
        store.start_run(make_run("agent", "next"), "me", LONG_TTL)
        store.rewrite("agent", changed_contents, start.lease)
        standing = store.activity("agent")
        assert standing.active == "run"
        assert [run.status for run in standing.open] == [RunStatus.RUNNING, RunStatus.BLOCKED]
        assert standing.open[0].envelope == {"was": {"e": 1}}
        assert standing.holder is not None

    def test_who_does_not_hold_the_lease_cannot_rewrite(self, store: CheckpointStore) -> None:
        _worked(store)
        lease = store.acquire("agent", "me", LONG_TTL)
        before = store.list("agent")
        with pytest.raises(LeaseHeld):
            store.rewrite("agent", changed_contents)
        assert store.rewrite("agent", lambda contents: None), "to look is allowed"
        assert store.list("agent") == before
        assert store.rewrite("agent", changed_contents, lease)
        store.release(lease)
        with pytest.raises(LeaseLost):
            store.rewrite("agent", changed_contents, lease)

    def test_there_is_nothing_to_rewrite_of_an_agent_that_is_not_there(
        self, store: CheckpointStore
    ) -> None:
        assert _contents(store) == AgentContents([], [], [])
        assert store.rewrite("agent", lambda contents: None)
        assert list(store.agents()) == []
