"""The contract of ``claim_due`` for sweeps, ``snapshots`` and ``apply``."""

from __future__ import annotations

from datetime import timedelta

from celery_ckpt.records import RunStatus
from celery_ckpt.retention.policy import Rules
from celery_ckpt.retention.report import AgentPolicy, PrunePlan
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import (
    LONG_TTL,
    SWEEP,
    ContractFixtures,
    judged,
    saved,
    settled,
    sweep,
)
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step


class PruningContract(ContractFixtures):
    """Every agent that changes is due for a sweep, and a sweep removes only what it planned."""

    # -- which agents are due ------------------------------------------------------------------------

    def test_a_saved_agent_is_claimed_by_one_sweep(self, store: CheckpointStore) -> None:
        saved(store, "agent", 3)
        saved(store, "{other}", 1)

        assert store.count_due(SWEEP) == 2
        assert sorted(name for name, _ in store.claim_due(10, LONG_TTL, SWEEP)) == ["agent", "{other}"]
        assert store.claim_due(10, LONG_TTL, SWEEP) == []
        assert store.count_due(SWEEP) == 0
        assert store.claim_due(10, LONG_TTL) == [], "the watchdog has a schedule of its own"

    def test_a_swept_agent_is_due_again_when_it_changes(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        saved(store, "agent", 2)
        assert sweep(store) == ["agent"]
        assert sweep(store) == []

        saved(store, "agent", 1)
        assert sweep(other_store) == ["agent"]
        saved(other_store, "agent", 1)
        assert sweep(store) == ["agent"]
        saved(store, "agent", 1)
        saved(store, "agent", 1)
        assert sweep(store) == ["agent"]
        assert sweep(store) == []

    def test_settling_a_run_makes_its_agent_due_for_a_sweep(self, store: CheckpointStore) -> None:
        start = store.start_run(make_run("agent", "run"), "me", LONG_TTL)
        sweep(store)
        ended = start.run.model_copy(update={"status": RunStatus.SUCCEEDED})
        store.settle_run(ended, start.lease)

        assert sweep(store) == ["agent"]

    def test_an_agent_that_changes_during_a_sweep_is_due_again(self, store: CheckpointStore) -> None:
        saved(store, "agent", 2)
        for change in (
            lambda: saved(store, "agent", 1),
            lambda: store.pin(store.history("agent")[-1].id, "mine"),
        ):
            plans = judged(store, Rules(keep=1), retry=-1)
            change()
            store.apply(plans)
            assert sweep(store, Rules(keep=1)) == ["agent"]
        assert sweep(store) == []

    def test_an_agent_is_due_again_when_the_plan_says(self, store: CheckpointStore) -> None:
        saved(store, "agent", 2)
        [plan] = judged(store)
        store.apply([PrunePlan(plan.snapshot, plan.due_at, again=LONG_TTL)])
        assert sweep(store) == []

        saved(store, "agent", 1)  # a new change makes the agent due at once
        [plan] = judged(store)
        store.apply([PrunePlan(plan.snapshot, plan.due_at, again=-1)])
        assert sweep(store) == ["agent"]

    def test_a_schedule_entry_made_during_a_sweep_is_kept(self, store: CheckpointStore) -> None:
        saved(store, "agent", 2)
        plans = judged(store)
        store.schedule("agent", -1, SWEEP)
        store.apply(plans)

        assert sweep(store) == ["agent"]

    def test_an_unknown_agent_is_not_due_again(self, store: CheckpointStore) -> None:
        saved(store, "agent", 1)
        found = store.claim_due(10, -1, SWEEP)
        store.delete("agent")
        store.schedule("unknown", 0, SWEEP)
        sweep(store)

        assert found[0][0] == "agent"
        assert store.claim_due(10, LONG_TTL, SWEEP) == []
        assert [snapshot.seen for snapshot in store.snapshots(["agent"])] == [""]
        assert list(store.agents()) == []

    # -- snapshots -----------------------------------------------------------------------------------

    def test_a_snapshot_has_what_retention_needs(self, store: CheckpointStore) -> None:
        history = saved(store, "agent", 3)
        [snapshot, unknown] = store.snapshots(["agent", "unknown"])

        assert [one.id for one in snapshot.checkpoints] == [one.id for one in reversed(history)]
        assert [one.seq for one in snapshot.checkpoints] == [one.seq for one in store.history("agent")]
        assert [one.created_at for one in snapshot.checkpoints] == [
            one.created_at for one in history[::-1]
        ]
        assert (snapshot.is_busy, snapshot.is_named_by_task, snapshot.last_run) == (False, False, None)
        assert (unknown.seen, unknown.checkpoints) == ("", [])

    def test_a_snapshot_knows_the_runs(self, store: CheckpointStore) -> None:
        store.add_run(make_run("agent", "agent"))
        store.add_run(make_run("agent", "later", keep=7, max_age=60.0))
        [snapshot] = store.snapshots(["agent"])
        assert (snapshot.is_busy, snapshot.is_named_by_task) == (True, True)
        assert snapshot.last_run is not None
        assert (snapshot.last_run.run_id, snapshot.last_run.keep, snapshot.last_run.max_age) == (
            "later",
            7,
            60,
        )

        lease = store.acquire("leased", "me", LONG_TTL)
        assert store.snapshots(["leased"])[0].is_busy
        store.release(lease)
        assert not store.snapshots(["leased"])[0].is_busy

    def test_every_change_of_an_agent_changes_its_snapshot(self, store: CheckpointStore) -> None:
        run = make_run("agent", "run")
        seen = [""]

        def look() -> None:
            [snapshot] = store.snapshots(["agent"])
            assert snapshot.seen != seen[-1]
            assert store.snapshots(["agent"])[0].seen == snapshot.seen
            seen.append(snapshot.seen)

        saved(store, "agent", 1)
        look()
        store.add_run(run)
        look()
        lease = store.start_run(run, "me", LONG_TTL).lease
        look()
        store.record_step(make_step("agent", "run"), lease)
        look()
        ended = run.model_copy(update={"status": RunStatus.FAILED})
        store.settle_run(ended, lease)
        look()
        store.update_run(run)
        look()
        store.set_policy("agent", AgentPolicy(), AgentPolicy(keep=3))
        look()

    # -- applying plans ------------------------------------------------------------------------------

    def test_exactly_the_planned_checkpoints_are_removed(self, store: CheckpointStore) -> None:
        history, others = saved(store, "agent", 6), saved(store, "other", 2)

        pruned = {one.agent_id: one for one in store.apply(judged(store, Rules(keep=2)))}

        assert store.list("agent") == history[:-3:-1]
        assert store.list("other") == others[::-1]
        assert pruned["agent"].checkpoints == 4
        assert set(pruned["agent"].ids) == {one.id for one in history[:4]}
        assert not pruned["other"].is_any
        assert store.load(history[0].id) is None

    def test_checkpoints_saved_during_a_sweep_are_kept(self, store: CheckpointStore) -> None:
        history = saved(store, "agent", 4)
        plans = judged(store, Rules(keep=1))
        later = saved(store, "agent", 2, history[-1])
        [pruned] = store.apply(plans)

        assert pruned.checkpoints == 3
        assert store.list("agent") == [*later[::-1], history[-1]]

    def test_an_agent_resumed_during_a_sweep_keeps_its_latest_checkpoint(
        self, store: CheckpointStore
    ) -> None:
        for agent_id in ("quiet", "taken up", "resumed"):
            saved(store, agent_id, 2)
            settled(store, agent_id, agent_id, None, RunStatus.CANCELLED)
        latest = {name: store.load_latest(name) for name in store.agents()}
        plans = judged(store, Rules(keep=None, max_age=1), retry=-1, later=timedelta(days=1))
        assert [len(plan.remove) for plan in plans] == [2, 2, 2]
        store.start_run(make_run("taken up", "next"), "me", LONG_TTL)
        store.update_run(make_run("resumed", "resumed"))

        pruned = {one.agent_id: one.checkpoints for one in store.apply(plans)}

        assert pruned == {"quiet": 2, "taken up": 0, "resumed": 0}
        assert store.load_latest("quiet") is None
        for agent_id in ("taken up", "resumed"):
            assert store.load_latest(agent_id) == latest[agent_id]
        [*again] = store.apply(judged(store, Rules(keep=1)))
        assert {one.agent_id: one.checkpoints for one in again} == {"taken up": 1, "resumed": 1}

    def test_an_agent_is_deleted_only_if_nothing_has_changed(self, store: CheckpointStore) -> None:
        for agent_id in ("quiet", "busy"):
            run = make_run(agent_id, agent_id)
            lease = store.start_run(run, "me", LONG_TTL).lease
            store.save(make_checkpoint(agent_id), lease)
            store.settle_run(run.model_copy(update={"status": RunStatus.FAILED}), lease)
        plans = judged(store, Rules(forget_after=1), later=timedelta(days=1))
        assert all(plan.forget for plan in plans)
        store.update_run(make_run("busy", "busy"))  # the run is resumed

        pruned = {one.agent_id: one for one in store.apply(plans)}

        assert (pruned["quiet"].forgotten, pruned["quiet"].checkpoints) == (True, 1)
        assert not pruned["busy"].is_any
        assert list(store.agents()) == ["busy"]
        assert store.run("busy", "busy") is not None
        assert (store.runs("quiet"), store.list("quiet")) == ([], [])
        assert store.count_due(SWEEP) == 0

    def test_applying_a_plan_twice_is_harmless(self, store: CheckpointStore) -> None:
        history = saved(store, "agent", 4)
        plans = judged(store, Rules(keep=2))

        assert store.apply(plans)[0].checkpoints == 2
        assert store.apply(plans)[0].checkpoints == 0
        assert store.list("agent") == history[:-3:-1]
