"""The contract of ``record_step``, ``steps`` and ``drop_steps``."""

from __future__ import annotations

import pytest

from celery_ckpt.errors import AlreadyExists, CheckpointTooLarge, LeaseLost
from celery_ckpt.records import RunStatus
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import ContractFixtures
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step
from celery_ckpt.usage import Usage


class StepsContract(ContractFixtures):
    """Recorded steps are returned in order with exact values, and add to the usage of their run."""

    def test_steps_are_returned_in_the_order_of_recording(self, store: CheckpointStore) -> None:
        values = [None, 0, "", [1, {"a": None}], {"x": 1e22, "é": "\u2028"}, True, 10**40]
        steps = [
            make_step("agent", "run", f"{9 - number}", iteration=number % 3, value=value, name="f")
            for number, value in enumerate(values)
        ]
        for step in steps:
            store.record_step(step)
        store.record_step(make_step("agent", "other run"))
        store.record_step(make_step("other agent", "run"))

        assert store.steps("agent", "run") == steps

    def test_a_step_raises_the_usage_of_its_run_once(self, store: CheckpointStore) -> None:
        run = make_run()
        store.add_run(run)
        first = Usage.of("a model; = 1, ü", input_tokens=10, output_tokens=2, cost=0.5)
        second = Usage.of("other", cached_tokens=2**50) + Usage.of(input_tokens=1)
        for number, paid in enumerate((first, second, first)):
            step = make_step(run_id=run.run_id, key=str(number), usage=paid)
            for _ in range(2):
                store.record_step(step, paid=paid)

        found = store.run("agent", run.run_id)
        assert found == run.model_copy(update={"usage": first + second + first})
        assert found.usage.cost == 1.0
        assert [step.usage for step in store.steps("agent", run.run_id)] == [first, second, first]
        assert store.runs("agent") == store.activity("agent").open == [found]

    def test_a_step_without_usage_does_not_change_its_run(self, store: CheckpointStore) -> None:
        run = make_run(usage=Usage.of("m", input_tokens=1))
        store.add_run(run)
        store.record_step(make_step(run_id=run.run_id))
        store.record_step(make_step(run_id=run.run_id), paid=Usage())
        store.record_step(make_step(run_id="not added"), paid=Usage.of("m", input_tokens=1))

        assert store.runs("agent") == [run]

    def test_only_steps_change_the_usage_of_a_run(self, store: CheckpointStore) -> None:
        store.add_run(make_run(run_id="run"))
        started = store.start_run(make_run(run_id="run"), "worker", 60)
        store.record_step(make_step(), started.lease, paid=Usage.of("m", input_tokens=5))
        paid = Usage.of("m", input_tokens=5)
        # An attempt has the record of its run as it was when the attempt began.
        store.update_run(started.run, started.lease)
        assert store.runs("agent")[0].usage == paid
        store.save(make_checkpoint(run_id="run"), started.lease, run=started.run)
        assert store.runs("agent")[0].usage == paid
        assert started.lease is not None
        store.release(started.lease, run=started.run)
        assert store.runs("agent")[0].usage == paid
        again = store.start_run(make_run(run_id="run"), "worker", 60)
        assert again.run.usage == paid
        ended = started.run.model_copy(update={"status": RunStatus.SUCCEEDED})
        store.settle_run(ended, again.lease)
        assert store.runs("agent")[0].usage == paid

    def test_a_refused_step_does_not_raise_the_usage_of_its_run(self, store: CheckpointStore) -> None:
        store.add_run(make_run(run_id="run"))
        lost = store.acquire("agent", "worker", 60)
        store.release(lost)
        with pytest.raises(LeaseLost):
            store.record_step(make_step(), lost, paid=Usage.of("m", input_tokens=5))

        assert not store.runs("agent")[0].usage

    def test_recording_an_equal_step_again_does_nothing(self, store: CheckpointStore) -> None:
        first, second = make_step(), make_step()
        for step in (first, second, first):
            store.record_step(step)

        assert store.steps("agent", "run") == [first, second]

    def test_recording_a_different_result_under_an_existing_key_is_refused(
        self, store: CheckpointStore
    ) -> None:
        step = make_step()
        store.record_step(step)

        for change in ({"value": "other"}, {"iteration": 5}):
            with pytest.raises(AlreadyExists):
                store.record_step(step.model_copy(update=change))
        assert store.steps("agent", "run") == [step]

    def test_steps_are_compared_as_json(self, store: CheckpointStore) -> None:
        step = make_step(value=[0, {"a": 1, "b": 2}])
        store.record_step(step)

        store.record_step(step.model_copy(update={"value": [0, {"b": 2, "a": 1}]}))
        for value in ([False, {"a": 1, "b": 2}], [0.0, {"a": 1, "b": 2}]):
            with pytest.raises(AlreadyExists):
                store.record_step(step.model_copy(update={"value": value}))
        assert str([s.value for s in store.steps("agent", "run")]) == str([step.value])

    def test_a_step_with_a_very_large_iteration_is_dropped(self, store: CheckpointStore) -> None:
        store.record_step(make_step(iteration=2**61))

        assert store.drop_steps("agent", "run", first=1, last=2**70) == 1

    @pytest.mark.parametrize("run_id", ["", "x" * 513, "\ud800"])
    def test_an_invalid_run_id_is_a_value_error(self, store: CheckpointStore, run_id: str) -> None:
        for call in (store.steps, store.run, store.drop_steps):
            with pytest.raises(ValueError, match="run_id"):
                call("agent", run_id)

    def test_run_ids_and_step_keys_do_not_collide(self, store: CheckpointStore) -> None:
        names = [("a:b", "c"), ("a", "b:c"), ("a b", "c"), ("a", "b c"), ("1:a", "x"), ("", "y")]
        steps = [make_step("agent", run or "\x00", key) for run, key in names]
        for step in steps:
            store.record_step(step)

        for step in steps:
            assert step in store.steps("agent", step.run_id)
        assert sum(len(store.steps("agent", run_id)) for run_id in {s.run_id for s in steps}) == len(
            steps
        )

    def test_steps_are_dropped_by_iteration(self, store: CheckpointStore) -> None:
        steps = [make_step(iteration=iteration) for iteration in (0, 1, 1, 2, 3)]
        for step in steps:
            store.record_step(step)
        store.record_step(make_step(run_id="other", iteration=1))

        assert store.drop_steps("agent", "run", first=1, last=2) == 3
        assert store.steps("agent", "run") == [steps[0], steps[4]]
        assert store.drop_steps("agent", "run") == 2
        assert store.steps("agent", "run") == []
        assert len(store.steps("agent", "other")) == 1
        assert store.drop_steps("unknown", "run") == 0

    def test_an_iteration_can_have_many_steps(self, store: CheckpointStore) -> None:
        steps = [make_step(iteration=1) for _ in range(120)]
        for step in steps:
            store.record_step(step)

        assert store.steps("agent", "run") == steps
        assert store.drop_steps("agent", "run", first=1) == 120

    def test_a_step_over_the_limit_is_refused(self, store: CheckpointStore) -> None:
        store.max_checkpoint_bytes = 2000  # type: ignore[attr-defined]

        with pytest.raises(CheckpointTooLarge, match="Step 'big' of agent 'agent'"):
            store.record_step(make_step(key="big", value="x" * 3000))
        assert store.steps("agent", "run") == []
