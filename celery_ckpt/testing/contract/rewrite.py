"""The contract of ``rewrite``."""

from __future__ import annotations

import pytest

from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import LeaseHeld, LeaseLost
from celery_ckpt.records import AgentContents, RunStatus
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.features import needs
from celery_ckpt.testing.contract.fixtures import LONG_TTL, ContractFixtures
from celery_ckpt.testing.factories import (
    changed_contents,
    make_checkpoint,
    make_conversation,
    make_message,
    make_run,
    make_step,
)

#: On each test, not on the class: a subclass has the tests of other parts too.
if_declared = pytest.mark.usefixtures("rewriting")


def _worked(store: CheckpointStore) -> Conversation:
    """Make an agent with some of everything, partly pruned, and return its current conversation."""
    conversation = make_conversation(3)
    for number in range(4):
        conversation.append(make_message(f"iteration {number}"))
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
    """``rewrite`` replaces everything that an agent has, in one step."""

    @pytest.fixture
    def rewriting(self, store: CheckpointStore) -> None:
        """Skip the test if the store does not declare the feature "rewrite"."""
        needs("rewrite", store)

    @if_declared
    def test_rewrite_passes_the_whole_agent(self, store: CheckpointStore) -> None:
        _worked(store)
        contents = _contents(store)
        assert contents.checkpoints == store.list("agent")[::-1]
        assert contents.runs == store.runs("agent")
        steps = [*store.steps("agent", "one"), *store.steps("agent", "two")]
        assert contents.steps == steps

    @if_declared
    def test_rewrite_replaces_the_whole_agent(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        _worked(store)
        changed = changed_contents(_contents(store))
        pins = [info.pin for info in store.history("agent")]

        assert store.rewrite("agent", changed_contents)

        for each in (store, other_store):
            assert each.list("agent") == changed.checkpoints[::-1]
            assert each.load_latest("agent") == changed.checkpoints[-1]
            assert [each.load(one.id) for one in changed.checkpoints] == changed.checkpoints
            assert each.runs("agent") == changed.runs
            assert each.steps("agent", "one") == changed.steps[:2]
            assert [info.pin for info in each.history("agent")] == pins

    @if_declared
    def test_a_rewritten_agent_can_be_continued(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        conversation = _worked(store)
        seq = store.history("agent")[0].seq
        store.rewrite("agent", changed_contents)
        conversation.append(make_message("by a process that knew it"))
        first = make_checkpoint("agent", conversation, 5)
        store.save(first)
        loaded = other_store.load_latest("agent")
        assert loaded == first
        continued = loaded.conversation
        continued.append(make_message("by a process that loaded it"))
        second = make_checkpoint("agent", continued, 6)
        other_store.save(second)
        assert store.list("agent", limit=2) == [second, first]
        assert [info.seq > seq for info in store.history("agent")[:2]] == [True, True]
        assert store.prune("agent", 1) == 4
        assert other_store.list("agent") == [second]

    @if_declared
    def test_rewrite_may_change_the_keys_of_steps(self, store: CheckpointStore) -> None:
        _worked(store)

        def renamed(contents: AgentContents) -> AgentContents:
            steps = [s.model_copy(update={"key": f"{s.key}!"}) for s in contents.steps]
            return AgentContents(contents.checkpoints, steps, contents.runs)

        store.rewrite("agent", renamed)
        assert [step.key for step in store.steps("agent", "two")] == ["a!", "b!"]
        assert store.drop_steps("agent", "two", first=1, last=1) == 2
        assert store.steps("agent", "two") == []
        assert len(store.steps("agent", "one")) == 2

    @if_declared
    def test_rewrite_may_omit_steps_and_exchange_their_keys(self, store: CheckpointStore) -> None:
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

    @if_declared
    def test_rewrite_does_not_reuse_the_number_of_a_removed_checkpoint(
        self, store: CheckpointStore
    ) -> None:
        _worked(store)
        newest, *older = store.history("agent")
        store.remove("agent", [newest.id])
        store.rewrite("agent", changed_contents)
        store.save(make_checkpoint("agent"))
        assert store.history("agent")[0].seq > newest.seq
        assert [info.id for info in store.history("agent")[1:]] == [info.id for info in older]

    @if_declared
    def test_rewrite_does_not_change_the_turns_of_runs(self, store: CheckpointStore) -> None:
        start = store.start_run(make_run("agent", "run", envelope={"e": 1}), "me", LONG_TTL)
        store.add_run(make_run("agent", "next"))
        store.start_run(make_run("agent", "next"), "me", LONG_TTL)
        store.rewrite("agent", changed_contents, start.lease)
        activity = store.activity("agent")
        assert activity.active == "run"
        assert [run.status for run in activity.open] == [RunStatus.RUNNING, RunStatus.BLOCKED]
        assert activity.open[0].envelope == {"was": {"e": 1}}
        assert activity.holder is not None

    @if_declared
    def test_rewrite_without_the_lease_is_refused(self, store: CheckpointStore) -> None:
        _worked(store)
        lease = store.acquire("agent", "me", LONG_TTL)
        before = store.list("agent")
        with pytest.raises(LeaseHeld):
            store.rewrite("agent", changed_contents)
        assert store.rewrite("agent", lambda contents: None), "reading needs no lease"
        assert store.list("agent") == before
        assert store.rewrite("agent", changed_contents, lease)
        store.release(lease)
        with pytest.raises(LeaseLost):
            store.rewrite("agent", changed_contents, lease)

    @if_declared
    def test_rewriting_an_unknown_agent_does_nothing(self, store: CheckpointStore) -> None:
        assert _contents(store) == AgentContents([], [], [])
        assert store.rewrite("agent", lambda contents: None)
        assert list(store.agents()) == []
