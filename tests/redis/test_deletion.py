"""Deleting agents on Redis: markers of open runs in other slots, index entries, lost replies."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis import Redis

from celery_ckpt import RedisCheckpointStore, open_store
from celery_ckpt.errors import LeaseLost
from celery_ckpt.records import RunStatus, Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.testing import make_checkpoint, make_run, make_step
from celery_ckpt.testing.contract.fixtures import judged, sweep
from tests.support.redis_agents import markers
from tests.support.servers.proxies import Proxy


def entries(client: Redis) -> list[bytes]:
    """Return the index entries of all agents, and the agents that are scheduled for a sweep."""
    return [
        member
        for pattern in ("ckpt:agents:*", "ckpt:sweep:*")
        for key in client.scan_iter(pattern)
        for member in client.zrange(key, 0, -1)
    ]


# -- markers -------------------------------------------------------------------------------------------


def test_a_deletion_marks_more_open_runs_than_it_reads_at_once(
    store: RedisCheckpointStore, redis_url: str
) -> None:
    names = [f"run {number}" for number in range(1200)]
    for name in names:
        store.add_run(make_run("agent", name))
    store.delete("agent")

    with Redis.from_url(redis_url) as client:
        assert len(markers(client)) == len(names)
        assert client.dbsize() == len(names)
    assert all(store.was_deleted(name) for name in names[::100])


def test_deleting_an_agent_without_runs_takes_four_round_trips(
    far_store: RedisCheckpointStore, wire: Proxy
) -> None:
    far_store.save(make_checkpoint("agent"))
    far_store.delete("agent")
    far_store.save(make_checkpoint("agent"))
    wire.reset()
    far_store.delete("agent")
    assert wire.trips == 4, "read the runs, delete, remove the entries, check that it is gone"


@pytest.mark.parametrize("trip", range(1, 6))
def test_a_run_that_is_opened_during_the_deletion_is_marked_or_stays(
    trip: int, far_store: RedisCheckpointStore, store: RedisCheckpointStore, wire: Proxy
) -> None:
    reopened = make_run("agent", "reopened")
    ended = {"status": RunStatus.FAILED, "delivered": True}
    store.add_run(reopened.model_copy(update=ended))
    for name in ("run 1", "run 2"):
        store.add_run(make_run("agent", name))

    def open_runs() -> None:
        if store.run("agent", "reopened"):
            store.update_run(reopened)
        store.add_run(make_run("agent", "new"))

    far_store.count_due()
    done = wire.before(trip, open_runs)
    far_store.delete("agent")
    done.result(timeout=10)

    left = {run.run_id for run in store.runs("agent")}
    deleted = {name for name in ("run 1", "run 2", "reopened", "new") if store.was_deleted(name)}
    assert {"run 1", "run 2"} <= deleted
    assert "new" in left | deleted, "a run that is neither on record nor marked is taken for lost"
    if "reopened" not in deleted:
        assert left in ({"reopened", "new"}, {"new"}), "it was deleted while it was settled"
    assert list(store.agents()) == (["agent"] if left else [])


@pytest.mark.parametrize("trip", range(1, 6))
def test_a_lost_reply_during_a_deletion_loses_no_marker(
    trip: int, far_store: RedisCheckpointStore, store: RedisCheckpointStore, wire: Proxy
) -> None:
    far_store.add_run(make_run("agent", "run"))
    wire.lose_reply(trip)
    far_store.delete("agent")

    assert store.was_deleted("run")
    assert list(store.agents()) == []


# -- leftovers -----------------------------------------------------------------------------------------


def test_a_refused_write_leaves_no_index_entry(store: RedisCheckpointStore, redis_url: str) -> None:
    lease = store.start_run(make_run("agent", "run"), "me", 60).lease
    store.delete("agent")
    with Redis.from_url(redis_url) as client:
        for write in (
            lambda other: other.save(make_checkpoint("agent"), lease),
            lambda other: other.record_step(make_step("agent", "run"), lease),
        ):
            # A process that has not seen the agent writes the entry before the data.
            with open_store(redis_url) as other, pytest.raises(LeaseLost):
                write(other)
            assert entries(client) == []


def test_a_sweep_removes_the_entry_of_an_agent_that_does_not_exist(
    store: RedisCheckpointStore, redis_url: str
) -> None:
    store.save(make_checkpoint("stays"))
    store._index.add("gone")  # a writer that dies before it writes the data

    assert sweep(store) == ["gone", "stays"]

    with Redis.from_url(redis_url) as client:
        assert [entry for entry in entries(client) if b"gone" in entry] == []
    assert list(store.agents()) == ["stays"]
    assert list(store.findings()) == []


def test_a_deletion_by_a_sweep_is_reported_although_its_reply_was_lost(
    far_store: RedisCheckpointStore, store: RedisCheckpointStore, wire: Proxy, redis_url: str
) -> None:
    foreign = make_checkpoint("agent").model_copy(update={"id": "an id of its own"})
    run = make_run("agent", "agent")
    lease = store.start_run(run, "me", 60).lease
    store.save(foreign, lease)
    store.settle_run(run.model_copy(update={"status": RunStatus.SUCCEEDED}), lease)
    plans = judged(far_store, Rules(forget_after=1), later=timedelta(days=1))
    assert [plan.forget for plan in plans] == [True]

    wire.lose_reply()
    [pruned] = far_store.apply(plans)

    assert wire.lost_replies == 1
    assert (pruned.forgotten, pruned.checkpoints, pruned.bytes > 0) == (True, 1, True)
    with Redis.from_url(redis_url) as client:
        assert entries(client) == []
        assert client.keys("ckpt:ids:*") == []
    assert store.count_due(Schedule.SWEEP) == 0
