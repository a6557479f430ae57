"""The contract of ``add_run``, ``update_run``, ``run`` and ``runs``."""

from __future__ import annotations

import pytest

from celery_ckpt.errors import RunNotFound
from celery_ckpt.records import MANY_RUNS, RunStatus
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import ContractFixtures
from celery_ckpt.testing.factories import make_run


class RunsContract(ContractFixtures):
    """The records of runs are kept in the order in which the runs were added."""

    def test_a_run_is_added_once(self, store: CheckpointStore) -> None:
        run = make_run("agent", "run", envelope={"args": [1, "é"], "kwargs": {}})

        assert store.add_run(run) is True
        assert store.add_run(run) is True
        assert store.add_run(make_run("agent", "run", task="other")) is False
        assert store.run("agent", "run") == run
        assert store.run("agent", "none") is None
        assert store.run("unknown", "run") is None

    def test_a_run_is_updated(self, store: CheckpointStore) -> None:
        run = make_run("agent", "run")
        store.add_run(run)
        done = run.model_copy(
            update={"status": RunStatus.SUCCEEDED, "attempts": 3, "result": {"a": [1]}}
        )

        store.update_run(done)

        assert store.run("agent", "run") == done

    def test_a_run_is_open_until_its_record_says_that_it_is_settled(
        self, store: CheckpointStore
    ) -> None:
        over = {"status": RunStatus.FAILED, "delivered": True}
        run = make_run("agent", "updated")
        assert store.add_run(make_run("agent", "imported", **over))
        assert store.activity("agent").open == []
        assert not store.snapshots(["agent"])[0].is_busy

        store.add_run(run)
        store.update_run(run.model_copy(update={"status": RunStatus.FAILED}))
        assert len(store.activity("agent").open) == 1
        store.update_run(run.model_copy(update=over))
        assert store.activity("agent").open == []
        store.update_run(run)
        assert store.activity("agent").open == [run]

    def test_a_run_that_was_never_added_cannot_be_updated(self, store: CheckpointStore) -> None:
        with pytest.raises(RunNotFound, match="'agent' has no run 'run'"):
            store.update_run(make_run("agent", "run"))
        assert list(store.agents()) == []

    def test_runs_are_listed_in_the_order_in_which_they_were_added(
        self, store: CheckpointStore
    ) -> None:
        runs = [make_run("agent", f"run-{9 - number}") for number in range(4)]
        for run in runs:
            store.add_run(run)
        runs[1] = runs[1].model_copy(update={"retries": 2})
        store.update_run(runs[1])

        assert store.runs("agent") == runs
        assert store.last_run("agent") == runs[-1]
        assert store.last_run("unknown") is None

    def test_a_run_that_is_opened_again_counts_as_sent_now(self, store: CheckpointStore) -> None:
        runs = [make_run("agent", name) for name in ("first", "second", "third")]
        over = {"status": RunStatus.FAILED, "delivered": True}
        for run in runs:
            store.add_run(run.model_copy(update=over if run.run_id != "third" else {}))

        store.update_run(runs[0])
        store.update_run(runs[0].model_copy(update={"retries": 1}))

        assert [run.run_id for run in store.runs("agent")] == ["second", "third", "first"]
        assert [run.run_id for run in store.activity("agent").open] == ["third", "first"]
        last = store.last_run("agent")
        assert last is not None
        assert (last.run_id, last.retries) == ("first", 1)

    def test_many_runs_are_read_completely(self, store: CheckpointStore) -> None:
        runs = [make_run("agent", f"run {number}") for number in range(300)]
        for run in runs:
            store.add_run(run)

        assert store.runs("agent") == runs
        activity = store.activity("agent")
        assert activity.count == 300
        assert 0 < len(activity.open) <= MANY_RUNS + 1
        assert activity.open[:100] == runs[:100]
