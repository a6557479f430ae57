"""Renewing the leases of many agents at once: what it costs, and what does not prevent it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from celery_ckpt import RedisCheckpointStore, open_store
from celery_ckpt.errors import LeaseLost, StoreError, StoreUnavailable
from celery_ckpt.records import Lease
from celery_ckpt.runtime.process.lease_renewer import RENEWALS, HeldLease, LeaseRenewer
from celery_ckpt.store import CheckpointStore
from tests.support.redis_agents import run
from tests.support.servers.proxies import Proxy
from tests.support.servers.valkey import Valkey, cluster


@pytest.fixture
def server(valkey: Valkey, redis_url: str) -> Iterator[Redis]:
    with valkey.client() as client:
        yield client


def acquired(store: CheckpointStore, count: int) -> list[Lease]:
    return [store.acquire(f"agent {number}", "me", 30) for number in range(count)]


def scripts(server: Redis) -> int:
    """Return how many scripts the server has executed since the last reset."""
    stats = server.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def test_one_script_renews_a_hundred_leases(store: RedisCheckpointStore, server: Redis) -> None:
    leases = acquired(store, 250)
    store.renew_many(leases[:1], 60)  # the server learns the script
    server.config_resetstat()

    renewed = store.renew_many(leases, 60)

    assert scripts(server) == 3
    assert renewed == [store.holder(lease.agent_id) for lease in leases]


def test_renewing_a_hundred_leases_is_one_round_trip(
    far_store: RedisCheckpointStore, wire: Proxy
) -> None:
    leases = acquired(far_store, 100)
    far_store.renew_many(leases[:1], 60)
    wire.reset()

    far_store.renew_many(leases, 60)

    assert wire.trips == 1


def test_no_lease_of_five_thousand_expires_on_a_server_that_answers_in_20_ms(
    store: RedisCheckpointStore, server: Redis
) -> None:
    ttl, starts = 30.0, [store.start_run(run(f"agent {number}"), "me", 30) for number in range(5000)]
    app = Celery("renewing", broker="memory://", set_as_current=False)
    renewer = LeaseRenewer(app, store, ttl)
    renewer._is_working = True  # no threads
    for start in starts:
        renewer.add(HeldLease(start.lease, due_at=start.due_at))
    renewer.renew_all()  # the server learns the scripts
    server.config_resetstat()

    renewer.renew_all()

    # 50 renew a hundred leases each, and 10 move the deadlines of five hundred agents each.
    assert scripts(server) == 60
    assert scripts(server) * 0.02 < ttl / RENEWALS
    assert scripts(server) * RENEWALS * (60 / ttl) / 5000 <= 0.3, "scripts per agent-minute"
    moved = {held.lease.agent_id: held.due_at for held in renewer._all()}
    assert store.unschedule(moved) == 5000


def test_all_shards_of_a_schedule_are_claimed_and_moved_with_one_script_each(
    store: RedisCheckpointStore, server: Redis
) -> None:
    names = [f"agent {number}" for number in range(40)]
    for name in names:
        store.schedule(name, 0)
    store.reschedule(dict(store.claim_due(4, 0)), 0)  # the server learns the scripts
    server.config_resetstat()

    claimed = dict(store.claim_due(200, 30))
    assert (sorted(claimed), scripts(server)) == (sorted(names), 1)
    assert (sorted(store.reschedule(claimed, 60)), scripts(server)) == (sorted(names), 2)


def test_watchdogs_are_counted_until_their_time_is_over(
    store: RedisCheckpointStore, server: Redis
) -> None:
    assert [store.count_watchdogs(name, 30) for name in ("a", "b", "b")] == [1, 2, 2]
    server.zadd("ckpt:watchdogs", {"a": 1})
    assert store.count_watchdogs("c", 30) == 2
    assert 0 < server.ttl("ckpt:watchdogs") <= 30, "nothing is left when the last worker has ended"


def test_a_stolen_lease_and_a_key_of_the_wrong_type_do_not_prevent_the_other_renewals(
    store: RedisCheckpointStore, server: Redis
) -> None:
    leases = acquired(store, 150)
    thief = store.acquire("agent 3", "thief", 30, over=leases[3])
    server.set("ckpt:{agent 120}:agent", "not a hash")
    server.script_flush()

    renewed = store.renew_many(leases, 60)

    stolen, damaged = renewed.pop(3), renewed.pop(119)
    assert isinstance(stolen, LeaseLost)
    assert isinstance(damaged, StoreError)
    assert "ckpt:{agent 120}:agent: WRONGTYPE" in str(damaged)
    assert renewed == [
        store.holder(f"agent {number}") for number in range(150) if number not in (3, 120)
    ]
    assert store.holder("agent 3") == thief


def test_a_server_that_cannot_write_renews_no_lease_and_is_unavailable(
    store: RedisCheckpointStore, server: Redis
) -> None:
    leases = acquired(store, 3)
    server.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreUnavailable, match="Not enough good replicas"):
            store.renew_many(leases, 60)
    finally:
        server.config_set("min-replicas-to-write", 0)
    assert store.holder("agent 0") == leases[0]


def test_leases_on_a_cluster_are_renewed_each_with_its_own_error(tmp_path: Path) -> None:
    with (
        cluster(tmp_path) as masters,
        open_store(f"redis+cluster://127.0.0.1:{masters[0].port}") as store,
    ):
        leases = acquired(store, 40)
        store.release(leases[7])
        for node in masters:
            with node.client() as client:
                client.script_flush()

        renewed = store.renew_many(leases, 60)

        assert isinstance(renewed.pop(7), LeaseLost)
        assert renewed == [store.holder(f"agent {number}") for number in range(40) if number != 7]
        # A client that does not know that its server belongs to a cluster reaches a part of the agents.
        with open_store(masters[0].url) as part:
            here = [lease for lease in leases if _is_at(part, lease)]
            assert 3 < len(here) < 40
            assert part.renew_many(here, 90) == [part.holder(lease.agent_id) for lease in here]


def test_a_cluster_of_one_server_can_be_addressed_as_a_single_server(tmp_path: Path) -> None:
    with cluster(tmp_path, masters=1) as [node], open_store(node.url) as store:
        leases = acquired(store, 20)
        due_times = {lease.agent_id: store.schedule(lease.agent_id, 0) for lease in leases}

        assert store.renew_many(leases, 60) == [store.holder(lease.agent_id) for lease in leases]
        assert sorted(store.reschedule(due_times, -1)) == sorted(due_times)
        assert sorted(dict(store.claim_due(200, 30))) == sorted(due_times)


def _is_at(store: CheckpointStore, lease: Lease) -> bool:
    try:
        return store.holder(lease.agent_id) is not None
    except StoreError:
        return False
