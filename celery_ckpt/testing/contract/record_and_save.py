"""The contract of ``record_and_save``."""

from __future__ import annotations

import pytest

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import AlreadyExists, CheckpointTooLarge, LeaseHeld, LeaseLost
from celery_ckpt.messages import Message
from celery_ckpt.records import Schedule
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import ContractFixtures, sweep
from celery_ckpt.testing.factories import (
    make_checkpoint,
    make_conversation,
    make_message,
    make_run,
    make_step,
)
from celery_ckpt.usage import Usage

#: Long enough to be worth sending only once, in every way that JSON and UTF-8 can write them.
_TEXTS = ["a b" * 200, 'say "\\" \n' * 100, "\u00e9\u6f22\U0001f600" * 100, "%d %s \x01 1 2 3 4 " * 50]


def _grown(conversation: Conversation) -> Checkpoint:
    conversation.append(make_message())
    return make_checkpoint("agent", conversation, len(conversation))


class RecordAndSaveContract(ContractFixtures):
    """A step is recorded whatever becomes of the checkpoint; a lost lease refuses both."""

    def test_a_step_and_a_checkpoint_are_stored_together(self, store: CheckpointStore) -> None:
        run = make_run(run_id="run")
        store.add_run(run)
        lease, conversation = store.acquire("agent", "worker", 60), make_conversation()
        paid = Usage.of("m", input_tokens=5)
        steps = [make_step(usage=paid) for _ in range(3)]
        saved = [_grown(conversation) for _ in steps]
        for step, checkpoint in zip(steps, saved, strict=True):
            assert store.record_and_save(step, checkpoint, lease, paid=paid) is None

        assert store.steps("agent", "run") == steps
        assert store.list("agent") == saved[::-1]
        assert store.runs("agent")[0].usage == paid + paid + paid
        assert list(store.agents()) == ["agent"]

    @pytest.mark.parametrize("text", _TEXTS)
    def test_a_message_that_repeats_the_result_of_its_step_is_stored_whole(
        self, store: CheckpointStore, text: str
    ) -> None:
        conversation = make_conversation()
        store.save(make_checkpoint("agent", conversation, 1))
        message = {"role": "tool", "tool_call_id": "c", "content": text, "more": [text[:300], None]}
        results = (text, message, {"messages": [message]}, [text, text], text[:300], "", None)
        steps = [make_step(key=f"{number}", value=value) for number, value in enumerate(results)]
        saved = []
        for step in steps:
            conversation.append(Message.model_validate(message))
            saved.append(make_checkpoint("agent", conversation, len(conversation)))
            assert store.record_and_save(step, saved[-1]) is None

        assert store.steps("agent", "run") == steps
        assert store.list("agent", limit=len(saved)) == saved[::-1]

    def test_the_first_write_of_an_agent_can_be_both(self, store: CheckpointStore) -> None:
        step, checkpoint = make_step(), make_checkpoint()
        assert store.record_and_save(step, checkpoint) is None

        assert store.steps("agent", "run") == [step]
        assert store.load(checkpoint.id) == store.load_latest("agent") == checkpoint
        assert list(store.agents()) == ["agent"]
        assert [name for name, _ in store.claim_due(9, 60, Schedule.SWEEP)] == ["agent"]

    def test_repeating_both_does_nothing(self, store: CheckpointStore) -> None:
        store.add_run(make_run(run_id="run"))
        step, checkpoint, paid = make_step(), make_checkpoint(), Usage.of("m", input_tokens=5)
        for _ in range(3):
            assert store.record_and_save(step, checkpoint, paid=paid) is None

        assert store.steps("agent", "run") == [step]
        assert store.list("agent") == [checkpoint]
        assert store.runs("agent")[0].usage == paid

    def test_a_checkpoint_is_saved_with_a_step_that_was_recorded_before(
        self, store: CheckpointStore
    ) -> None:
        step, checkpoint = make_step(), make_checkpoint()
        store.record_step(step)
        assert store.record_and_save(step, checkpoint) is None
        assert store.list("agent") == [checkpoint]

    def test_a_lost_lease_refuses_both(self, store: CheckpointStore) -> None:
        lost = store.acquire("agent", "worker", 60)
        store.release(lost)
        store.acquire("agent", "another worker", 60)
        with pytest.raises(LeaseLost):
            store.record_and_save(make_step(), make_checkpoint(), lost)
        with pytest.raises(LeaseHeld):
            store.record_and_save(make_step(), make_checkpoint())

        assert store.steps("agent", "run") == []
        assert store.list("agent") == []

    def test_a_refused_step_saves_nothing(self, store: CheckpointStore) -> None:
        step = make_step()
        store.record_step(step)
        with pytest.raises(AlreadyExists):
            store.record_and_save(step.model_copy(update={"value": "other"}), make_checkpoint())
        store.max_checkpoint_bytes = 2000  # type: ignore[attr-defined]
        with pytest.raises(CheckpointTooLarge, match="Step 'big' of agent 'agent'"):
            store.record_and_save(make_step(key="big", value="x" * 3000), make_checkpoint())

        assert store.steps("agent", "run") == [step]
        assert store.list("agent") == []

    def test_a_step_is_recorded_even_if_its_checkpoint_is_refused(self, store: CheckpointStore) -> None:
        existing = make_checkpoint()
        store.save(existing)
        first, second = make_step(), make_step()
        refusal = store.record_and_save(first, existing.with_metadata("changed", "yes"))
        assert isinstance(refusal, AlreadyExists)
        store.max_checkpoint_bytes = 2000  # type: ignore[attr-defined]
        conversation = existing.conversation
        conversation.append(make_message("x" * 3000))
        refusal = store.record_and_save(second, make_checkpoint("agent", conversation))
        assert isinstance(refusal, CheckpointTooLarge)

        assert store.steps("agent", "run") == [first, second]
        assert store.list("agent") == [existing]

    def test_what_the_checkpoint_builds_on_may_be_removed(self, store: CheckpointStore) -> None:
        conversation = make_conversation()
        store.record_and_save(make_step(), _grown(conversation))
        store.record_and_save(make_step(), _grown(conversation))
        store.prune("agent", keep=0)
        third = _grown(conversation)
        assert store.record_and_save(make_step(), third) is None

        assert store.list("agent") == [third]
        assert len(store.steps("agent", "run")) == 3

    def test_another_process_may_have_saved_in_between(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        conversation = make_conversation()
        first = _grown(conversation)
        store.record_and_save(make_step(), first)
        other = _grown(first.conversation)
        other_store.save(other)
        second = _grown(conversation)
        assert store.record_and_save(make_step(), second) is None

        assert store.list("agent") == [second, other, first]

    def test_an_agent_may_be_deleted_in_between(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        conversation = make_conversation()
        store.record_and_save(make_step(), _grown(conversation))
        other_store.delete("agent")
        step, second = make_step(), _grown(conversation)
        assert store.record_and_save(step, second) is None

        assert store.steps("agent", "run") == [step]
        assert store.list("agent") == [second]
        assert list(store.agents()) == ["agent"]

    def test_a_sweep_finishes_with_an_agent_that_has_no_checkpoint(
        self, store: CheckpointStore
    ) -> None:
        store.record_step(make_step())
        sweep(store)
        assert list(store.findings()) == []
        assert store.record_and_save(make_step(), make_checkpoint()) is None
        assert [name for name, _ in store.claim_due(9, 60, Schedule.SWEEP)] == ["agent"]

    def test_an_agent_is_due_again_after_a_sweep(self, store: CheckpointStore) -> None:
        conversation = make_conversation()
        store.record_and_save(make_step(), _grown(conversation))
        sweep(store)
        assert store.claim_due(9, 60, Schedule.SWEEP) == []
        assert store.record_and_save(make_step(), _grown(conversation)) is None
        assert [name for name, _ in store.claim_due(9, 60, Schedule.SWEEP)] == ["agent"]
