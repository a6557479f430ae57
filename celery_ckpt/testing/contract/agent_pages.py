"""The contract of the list of agents: ``page``, ``outline`` and ``run_outlines``."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.errors import LeaseLost, RunNotFound
from celery_ckpt.records import AgentOutline, Lease, RunRecord, RunStatus
from celery_ckpt.retention.policy import Rules
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.clock import FakeClock
from celery_ckpt.testing.contract.fixtures import (
    LONG_TTL,
    ContractFixtures,
    judged,
    saved,
    settled,
    sweep,
)
from celery_ckpt.testing.factories import changed_contents, make_checkpoint, make_run, make_step
from celery_ckpt.usage import Usage


def all_of(
    store: CheckpointStore, status: RunStatus | str | None = None, limit: int = 100
) -> list[AgentOutline]:
    """Return all agents, read page by page."""
    found: list[AgentOutline] = []
    after = None
    while True:
        page = store.page(status, limit=limit, after=after)
        assert len(page.agents) <= limit
        assert not page.unreadable
        found += page.agents
        if page.after is None:
            return found
        assert page.after == page.cursors[-1]
        after = page.after


def names(rows: list[AgentOutline]) -> list[str]:
    """Return the names of some agents."""
    return [row.agent_id for row in rows]


def pass_a_moment(clock: FakeClock | None) -> None:
    """Let the store's clock go on, so that the next change has a later time."""
    if clock is not None:
        clock.advance(1)
    before = system_clock.now()
    while system_clock.now() - before < timedelta(milliseconds=1):
        time.sleep(0)


def started(store: CheckpointStore, agent_id: str, run_id: str) -> tuple[RunRecord, Lease]:
    """Start a run, and return its record and its lease."""
    start = store.start_run(make_run(agent_id, run_id), "me", LONG_TTL)
    assert start.lease is not None
    return start.run, start.lease


class AgentPagesContract(ContractFixtures):
    """Agents are listed by their last change and by their status, each exactly once."""

    def test_a_store_without_agents_has_an_empty_page(self, store: CheckpointStore) -> None:
        page = store.page()
        assert (page.agents, page.after, page.cursors, page.unreadable) == ([], None, [], {})
        assert store.outline("agent") is None

    def test_the_agent_whose_run_was_added_last_is_listed_first(
        self, store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        for name in ("b", "a", "c"):
            store.add_run(make_run(name, created_at=system_clock.now()))
            pass_a_moment(clock)

        assert names(all_of(store)) == ["c", "a", "b"]
        assert names(all_of(store, limit=1)) == ["c", "a", "b"]
        assert names(all_of(store, limit=2)) == ["c", "a", "b"]

    def test_the_status_is_that_of_the_active_run_or_else_of_the_last_one(
        self, store: CheckpointStore
    ) -> None:
        saved(store, "idle", 1)
        store.add_run(make_run("queued"))
        started(store, "running", "first")
        store.start_run(make_run("running", "second"), "me", LONG_TTL)
        settled(store, "failed", "run", None, RunStatus.FAILED)
        settled(store, "succeeded", "old", None, RunStatus.FAILED)
        settled(store, "succeeded", "run", None)

        expected = {
            "idle": None,
            "queued": RunStatus.QUEUED,
            "running": RunStatus.RUNNING,
            "failed": RunStatus.FAILED,
            "succeeded": RunStatus.SUCCEEDED,
        }
        assert {row.agent_id: row.status for row in all_of(store)} == expected
        for name, status in expected.items():
            assert names(all_of(store, status or "idle", limit=1)) == [name]
        assert all_of(store, "cancelled") == all_of(store, RunStatus.BLOCKED) == []

    def test_the_status_follows_a_run_from_its_start_to_its_end(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        def assert_listed(status: RunStatus) -> None:
            for each in (store, other_store):
                for one in (*RunStatus, "idle"):
                    assert names(all_of(each, one)) == (["agent"] if one == status else [])
                [row] = all_of(each)
                assert (row.agent_id, row.status, row.run_id) == ("agent", status, "run")

        store.add_run(make_run("agent", "run"))
        assert_listed(RunStatus.QUEUED)
        run, lease = started(store, "agent", "run")
        assert_listed(RunStatus.RUNNING)
        store.release(lease, run=run.model_copy(update={"status": RunStatus.QUEUED}))
        assert_listed(RunStatus.QUEUED)
        run, lease = started(store, "agent", "run")
        run = run.model_copy(update={"status": RunStatus.FAILED, "ended_at": system_clock.now()})
        store.save(make_checkpoint("agent"), lease, run=run)
        assert_listed(RunStatus.FAILED)
        store.settle_run(run, lease)
        assert_listed(RunStatus.FAILED)
        store.update_run(run.model_copy(update={"status": RunStatus.QUEUED, "delivered": False}))
        assert_listed(RunStatus.QUEUED)
        store.cancel_run("agent", "run", "me", LONG_TTL)
        assert_listed(RunStatus.CANCELLED)

    def test_the_next_run_gives_the_agent_its_status(self, store: CheckpointStore) -> None:
        run, lease = started(store, "agent", "first")
        store.start_run(make_run("agent", "second"), "me", LONG_TTL)
        store.settle_run(run.model_copy(update={"status": RunStatus.SUCCEEDED}), lease)
        [row] = all_of(store, "queued")
        assert (row.run_id, row.blocked) == ("second", 0)

    def test_a_row_has_what_a_table_needs(self, store: CheckpointStore) -> None:
        history = saved(store, "agent", 3)
        used = Usage.of("model", input_tokens=3, output_tokens=2, cost=0.5)
        store.add_run(make_run("agent", "run", task='a "task"', envelope={"envelope": 1}))
        run, lease = started(store, "agent", "run")
        store.record_step(make_step("agent", "run"), lease, paid=used)
        store.add_run(make_run("agent", "behind"))
        error = 'ValueError: ,"envelope":{} \n\\' * 100
        store.update_run(run.model_copy(update={"retries": 2, "error": error, "result": [1]}), lease)

        row = store.outline("agent")

        assert row is not None
        assert [row] == store.page().agents
        assert (row.agent_id, row.status, row.run_id) == ("agent", RunStatus.RUNNING, "run")
        assert (row.task, row.attempts, row.retries, row.blocked) == ('a "task"', 1, 2, 1)
        assert (row.owner, row.usage) == ("me", used)
        assert row.error is not None
        assert len(row.error) == 1000
        assert error.startswith(row.error[:-1])
        assert (row.iteration, row.checkpoints) == (history[-1].iteration, 3)
        assert row.checkpointed_at == history[-1].created_at
        assert row.changed_at is not None

    def test_an_agent_without_runs_and_checkpoints_is_not_listed(self, store: CheckpointStore) -> None:
        store.release(store.acquire("agent", "me", LONG_TTL))
        assert all_of(store) == []
        assert store.outline("agent") is None
        saved(store, "agent", 1)
        assert names(all_of(store, "idle")) == ["agent"]
        store.prune("agent", 0)
        assert all_of(store) == []

    def test_the_count_of_checkpoints_follows_removals_and_policies(
        self, store: CheckpointStore
    ) -> None:
        history = saved(store, "agent", 4)
        store.pin(history[0].id, "mine")
        settled(store, "agent", "old", system_clock.now() - timedelta(days=2))
        settled(store, "agent", "new", system_clock.now())
        store.remove("agent", [history[1].id])
        sweep(store, Rules(keep=2, forget_after=1.0))
        row = store.outline("agent")
        assert row is not None
        assert row.checkpoints == len(store.history("agent"))

    def test_a_deleted_agent_is_not_listed(
        self, store: CheckpointStore, other_store: CheckpointStore
    ) -> None:
        settled(store, "agent", "run", system_clock.now())
        settled(store, "other", "run", system_clock.now())
        store.delete("agent")
        assert names(all_of(other_store)) == names(all_of(store, "succeeded")) == ["other"]
        saved(store, "agent", 1)
        assert names(all_of(other_store, "idle")) == ["agent"]
        assert names(all_of(store, "succeeded")) == ["other"]
        assert list(store.findings()) == []

    def test_an_agent_that_a_sweep_deleted_is_not_listed(self, store: CheckpointStore) -> None:
        long_ago = system_clock.now() - timedelta(days=9)
        settled(store, "agent", "agent", long_ago)
        saved(store, "other", 1)
        store.apply(judged(store, Rules(keep=None, forget_after=1.0)))
        assert names(all_of(store)) == ["other"]
        assert list(store.findings()) == []

    def test_a_refused_write_lists_nothing(self, store: CheckpointStore) -> None:
        lost = store.acquire("agent", "me", LONG_TTL)
        store.delete("agent")
        run = make_run("agent", "run")
        refused: list[Callable[[], object]] = [
            lambda: store.save(make_checkpoint("agent"), lost),
            lambda: store.record_step(make_step("agent"), lost),
            lambda: store.settle_run(run),
            lambda: store.cancel_run("agent", "run", "me", LONG_TTL),
        ]
        for write in refused:
            with pytest.raises((LeaseLost, RunNotFound)):
                write()
        assert not store.release(lost)
        assert all_of(store) == []
        assert list(store.findings()) == []

    def test_an_agent_that_does_not_change_is_returned_exactly_once(
        self, store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        everybody = [f"agent-{number}" for number in range(25)]
        for name in everybody:
            store.add_run(make_run(name, "run"))
        changing = everybody[::5]
        found, after = list[str](), None
        while True:
            page = store.page(limit=4, after=after)
            found += names(page.agents)
            after = page.after
            if after is None:
                break
            pass_a_moment(clock)
            for name in changing:
                store.add_run(make_run(name))
            # The agent at the end of the page moves, or is deleted: the place stays valid.
            if page.agents[-1].agent_id in changing:
                store.delete(page.agents[-1].agent_id)

        for name in everybody:
            assert found.count(name) <= 1
            assert name in changing or found.count(name) == 1

    def test_a_page_continues_after_any_of_its_agents(self, store: CheckpointStore) -> None:
        for number in range(7):
            store.add_run(make_run(f"agent-{number}", "run"))
        page = store.page(limit=5)
        everybody = names(all_of(store))
        for place, cursor in enumerate(page.cursors, 1):
            assert names(store.page(after=cursor).agents) == everybody[place:]

    def test_a_save_and_a_step_do_not_change_the_order(
        self, store: CheckpointStore, clock: FakeClock | None
    ) -> None:
        for name in ("first", "second"):
            store.add_run(make_run(name, "run"))
            pass_a_moment(clock)
        before = store.outline("first")
        saved(store, "first", 1)
        store.record_step(make_step("first", "run"), paid=Usage.of("model", input_tokens=1))
        after = store.outline("first")
        assert names(all_of(store)) == ["second", "first"]
        assert before is not None
        assert after is not None
        assert after.changed_at == before.changed_at

    def test_a_rewritten_agent_stays_listed(self, store: CheckpointStore) -> None:
        if "rewrite" not in store.features:
            pytest.skip("the store does not have the feature 'rewrite'")
        saved(store, "agent", 2)
        settled(store, "agent", "run", system_clock.now())
        before = all_of(store, "succeeded")
        store.rewrite("agent", changed_contents)
        assert all_of(store, "succeeded") == before
        assert list(store.findings()) == []

    def test_a_foreign_id_and_strange_names_are_listed(self, store: CheckpointStore) -> None:
        strange = ["a b", "*", "! ", "{a}", "é:ü", "running 1 x:y", "x" * 512]
        for name in strange:
            own = Checkpoint(**{**make_checkpoint(name).__dict__, "id": f"an id of {name[:9]}"})
            store.save(own)
        assert sorted(names(all_of(store, "idle", limit=2))) == sorted(strange)

    def test_agents_are_selected_by_the_beginning_of_their_names(self, store: CheckpointStore) -> None:
        for name in ("user-1", "job-1", "user-2", "useless", "%_", "user-3"):
            store.add_run(make_run(name))
        first = store.page("queued", prefix="user-", limit=2)
        rest = store.page(prefix="user-", limit=2, after=first.after)
        assert (len(first.agents), rest.after) == (2, None)
        assert sorted(names(first.agents + rest.agents)) == ["user-1", "user-2", "user-3"]
        assert names(store.page(prefix="%").agents) == ["%_"]
        assert store.page("idle", prefix="user-").agents == store.page(prefix="u2").agents == []

    def test_wrong_arguments_of_a_page_are_refused(self, store: CheckpointStore) -> None:
        with pytest.raises(ValueError, match="sleeping"):
            store.page("sleeping")
        with pytest.raises(ValueError, match="limit"):
            store.page(limit=0)
        with pytest.raises(ValueError, match="after"):
            store.page(after="anything")

    # -- runs ----------------------------------------------------------------------------------------

    def test_outlines_of_runs_are_read_page_by_page(self, store: CheckpointStore) -> None:
        for number in range(5):
            envelope = {"envelope": {"error": None}, "created_at": "now"}
            settled(store, "agent", f"run-{number}", None, envelope=envelope, error='a "b"', result={})
        whole = store.run_outlines("agent")

        assert whole == [run.outline for run in store.runs("agent")][::-1]
        assert store.run_outlines("agent", limit=2) == whole[:2]
        assert store.run_outlines("agent", limit=2, before="run-3") == whole[2:4]
        assert store.run_outlines("agent", before="run-0") == []
        assert store.run_outlines("agent", limit=0) == store.run_outlines("unknown") == []

    def test_wrong_arguments_of_outlines_are_refused(self, store: CheckpointStore) -> None:
        with pytest.raises(ValueError, match="limit"):
            store.run_outlines("agent", limit=-1)
        with pytest.raises(RunNotFound):
            store.run_outlines("agent", before="unknown")
