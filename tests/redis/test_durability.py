"""What a failover undoes, and what is kept when a write waits for a replica or for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from redis import RedisCluster
from redis.cluster import ClusterNode

from celery_ckpt import Checkpoint, CheckpointStore, RedisCheckpointStore, open_store
from celery_ckpt.errors import ConfigurationError, StoreUnavailable
from celery_ckpt.stores.redis.durability import MAY_BE_LOST, MUST_BE_KEPT, SHOULD_BE_KEPT
from tests.support.redis_agents import call_every_method, checkpoint, line, markers, run, step, work
from tests.support.servers.proxies import Proxy
from tests.support.servers.replicas import Pair, replicated
from tests.support.servers.valkey import APPEND_ONLY, LOOPBACK, Valkey, cluster, is_before, wait_until

#: Scripts that write nothing, or nothing that belongs to an agent.
READING = {
    "agent_activity", "agent_contents", "agent_outline", "agent_snapshot", "change_page",
    "checkpoint_list", "checkpoint_load", "checkpoint_messages", "checkpoint_page", "checkpoint_scan",
    "event_log_page", "hash_page", "joined", "lease_holder", "message_page", "run_page", "run_scan",
    "schedule_count", "shared", "wait_write",
}  # fmt: skip
#: Most of this time is spent waiting for a confirmation that never arrives.
SOON = "?socket_timeout=0.25"


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Pair]:
    """A pair for tests that lose their master."""
    with replicated(tmp_path) as pair:
        yield pair


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with replicated(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def pair(lasting: Pair) -> Iterator[Pair]:
    """An empty master, whose replica can fall behind and catch up."""
    with lasting.master.client() as client:
        client.flushall()
    wait_until("the replica is in sync", lasting.is_in_step)
    yield lasting
    lasting.catch_up()


@pytest.fixture
def durable(pair: Pair) -> Iterator[CheckpointStore]:
    with open_store(pair.master.url, durability="replica") as store:
        yield store


@pytest.fixture
def impatient(pair: Pair) -> Iterator[CheckpointStore]:
    with open_store(pair.master.url + SOON, durability="replica") as store:
        yield store


# -- a replica -------------------------------------------------------------------------------------


def test_without_waiting_a_failover_can_lose_an_acknowledged_save(doomed: Pair) -> None:
    with open_store(doomed.master.url) as store:
        [kept] = work(store, "agent", 1)
        wait_until("the replica is in sync", doomed.is_in_step)
        doomed.fall_behind()
        work(store, "agent", 1)
    doomed.lose_master()
    with open_store(doomed.replica.url) as store:
        assert store.list("agent") == [kept]


def test_a_write_confirmed_by_a_replica_survives_the_loss_of_the_master(doomed: Pair) -> None:
    with open_store(doomed.master.url, durability="replica") as store, ThreadPoolExecutor() as threads:
        [first] = work(store, "agent", 1)
        store.add_run(run("agent"))
        store.record_step(step("agent"))
        doomed.fall_behind()
        second = checkpoint("agent", 2)
        saving = threads.submit(store.save, second)
        with doomed.master.client() as client:
            wait_until("it waits", lambda: client.info("clients")["blocked_clients"])
        assert not saving.done()
        doomed.catch_up()
        saving.result(timeout=60)
    # Immediately: only the calls themselves took time.
    doomed.lose_master()
    with open_store(doomed.replica.url) as store:
        assert store.list("agent") == [second, first]
        assert store.steps("agent", "run-1") == [step("agent")]
        assert [each.run_id for each in store.runs("agent")] == ["run-1"]
        assert list(store.agents()) == ["agent"]


def _saved(store: CheckpointStore) -> Any:
    same = checkpoint("agent")
    return lambda store: store.save(same)


def _cancelled(store: CheckpointStore) -> Any:
    store.add_run(run("agent"))
    return lambda store: store.cancel_run("agent", "run-1", "me", 30)


def _updated(store: CheckpointStore) -> Any:
    record = run("agent")
    store.add_run(record)
    return lambda store: store.update_run(record.model_copy(update={"attempts": 1}))


def _deleted(store: CheckpointStore) -> Any:
    work(store, "agent", 1)
    return lambda store: store.delete("agent")


def _added(store: CheckpointStore) -> Any:
    record = run("agent")
    return lambda store: store.add_run(record)


def _recorded(store: CheckpointStore) -> Any:
    return lambda store: store.record_step(step("agent"))


@pytest.mark.parametrize("prepare", [_saved, _cancelled, _updated, _deleted, _added, _recorded])
def test_a_repeated_write_on_a_new_connection_is_not_confirmed_without_the_replica(
    pair: Pair, durable: CheckpointStore, impatient: RedisCheckpointStore, prepare: Any
) -> None:
    write = prepare(durable)
    wait_until("the replica is in sync", pair.is_in_step)
    pair.freeze_replica()
    # A server counts the writes of each connection. This one is new, and the write was made before. The
    # first save of an agent is two writes.
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"not confirmed by a replica within 0\.2 s"):
            write(impatient)
        impatient._server.client.connection_pool.disconnect()
    pair.catch_up()
    write(durable)
    wait_until("the replica is in sync", pair.is_in_step)


def test_a_lease_is_renewed_and_released_without_a_replica(
    pair: Pair, durable: CheckpointStore, impatient: CheckpointStore
) -> None:
    record = run("agent")
    durable.add_run(record)
    pair.fall_behind()
    start = impatient.start_run(record, "me", 30)
    assert start.run.attempts == 1
    impatient.renew(start.lease, 60)
    assert impatient.release(start.lease, run=start.run)
    assert impatient.run("agent", "run-1").attempts == 1


# -- the disk --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waits_for_the_disk() -> None:
    if is_before(7, 2):
        pytest.skip("Redis has WAITAOF from 7.2 on")


@pytest.mark.usefixtures("waits_for_the_disk")
def test_a_save_waits_until_the_server_has_synced_its_log(tmp_path: Path) -> None:
    """A test cannot cause a power failure, but it can check that the reply follows the sync."""
    never_synced = ("--appendonly", "yes", "--appendfsync", "no")
    with Valkey(tmp_path, *never_synced) as server:
        with (
            open_store(server.url + SOON, durability="fsync") as store,
            pytest.raises(StoreUnavailable, match="not confirmed by the server's disk"),
        ):
            store.save(checkpoint("another agent"))
        with server.client() as client:
            client.config_set("appendfsync", "always")
        with open_store(server.url, durability="fsync") as store:
            saved = work(store, "agent", 2)
        server.restart()
        with open_store(server.url) as store:
            assert store.list("agent") == saved[::-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--appendonly", "no"), "append-only file; .* off"),
        (("--appendonly", "yes", "--appendfsync", "no"), "never does"),
    ],
)
def test_a_server_that_cannot_sync_is_reported_at_startup(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    with (
        Valkey(tmp_path, *options) as server,
        open_store(server.url + SOON, durability="fsync") as store,
    ):
        is_old = is_before(7, 2)
        with pytest.raises(ConfigurationError, match="Redis from 7.2 on" if is_old else message):
            store.risks()
        with pytest.raises(ConfigurationError if is_old else StoreUnavailable):
            store.save(checkpoint("agent"))


def test_a_server_without_a_replica_is_reported_at_startup(valkey: Valkey, redis_url: str) -> None:
    with open_store(redis_url, durability="replica") as store:
        assert any("there is none" in risk for risk in store.risks())


# -- both, in all ways -----------------------------------------------------------------------------


def test_every_operation_works_with_waiting(pair: Pair, durable: CheckpointStore) -> None:
    call_every_method(durable, "agent")
    with pair.master.client() as client:
        client.script_flush()
        call_every_method(durable, "agent")
        assert client.dbsize() == len(markers(client))


def test_a_save_that_waits_is_one_round_trip(pair: Pair) -> None:
    with (
        Proxy(pair.master.port) as wire,
        RedisCheckpointStore.from_url(wire.url, durability="replica") as store,
    ):
        conversation = work(store, "agent", 2)[-1].conversation
        conversation.append(line("agent", 3))
        third = Checkpoint.new("agent", conversation, 3)
        wire.reset()
        store.save(third)
        assert wire.trips == 1
        wire.lose_reply()
        fourth = Checkpoint.new("agent", conversation, 4)
        store.save(fourth)
        assert wire.lost_replies == 1
        assert [info.iteration for info in store.history("agent")] == [4, 3, 2, 1]


def test_every_script_has_exactly_one_durability_class() -> None:
    scripts = {
        path.name.removesuffix(".lua") for path in files("celery_ckpt.stores.redis.lua").iterdir()
    }
    sorts = [MUST_BE_KEPT - {"HSETNX", "ZADD"}, SHOULD_BE_KEPT, MAY_BE_LOST, READING]
    assert set().union(*sorts) == scripts, "a script is missing from durability.py"
    assert sum(map(len, sorts)) == len(scripts), "a script is in two of its lists"


# -- a cluster -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masters(
    waits_for_the_disk: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Valkey]]:
    with cluster(tmp_path_factory.mktemp("cluster"), options=APPEND_ONLY) as nodes:
        yield nodes


@pytest.fixture
def clustered(masters: list[Valkey]) -> Iterator[RedisCheckpointStore]:
    with open_store(f"redis+cluster://{LOOPBACK}:{masters[0].port}", durability="fsync") as store:
        yield store


def test_every_operation_waits_on_the_node_of_its_slot(clustered: RedisCheckpointStore) -> None:
    assert clustered.risks() == []
    for agent_id in ("agent", "another", "a third"):
        call_every_method(clustered, agent_id)


def _move(masters: list[Valkey], key: str) -> None:
    """Move the slot of a key to another node, with the steps that make all nodes agree."""
    nodes = [ClusterNode(LOOPBACK, node.port) for node in masters]
    with RedisCluster(startup_nodes=nodes) as client:
        slot = client.keyslot(key)
        old = client.nodes_manager.get_node_from_slot(slot)
        new, third = (node for node in client.get_primaries() if node.port != old.port)
        old_id, new_id = client.cluster_myid(old), client.cluster_myid(new)
        client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", old_id, target_nodes=new)
        client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", new_id, target_nodes=old)
        # The importing node comes first: its claim is then newer than that of the old owner.
        for node in (new, old, third):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id, target_nodes=node)


def test_a_write_that_waits_follows_a_slot_that_has_moved(
    masters: list[Valkey], clustered: RedisCheckpointStore
) -> None:
    _move(masters, "ckpt:{moving}:agent")
    saved = work(clustered, "moving", 2)
    assert clustered.list("moving") == saved[::-1]


def test_a_slot_that_no_node_owns_makes_the_store_unavailable(
    masters: list[Valkey], clustered: RedisCheckpointStore
) -> None:
    nodes = [ClusterNode(LOOPBACK, node.port) for node in masters]
    with RedisCluster(startup_nodes=nodes) as client:
        slot = client.keyslot("ckpt:{torn}:agent")
        owner = client.nodes_manager.get_node_from_slot(slot)
        other = next(node for node in client.get_primaries() if node.port != owner.port)
        its_id = client.cluster_myid(other)
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", its_id, target_nodes=owner)
    with pytest.raises(StoreUnavailable):
        clustered.load_latest("torn")
