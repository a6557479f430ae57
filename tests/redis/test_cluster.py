from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import RedisCluster
from redis.cluster import ClusterNode

from celery_ckpt import CheckpointStore, RedisCheckpointStore, open_store
from celery_ckpt.records import Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.testing.contract.event_log import EventLogContract
from celery_ckpt.testing.contract.fixtures import sweep
from celery_ckpt.testing.factories import make_step
from tests.support.redis_agents import call_every_method, markers, work
from tests.support.servers.valkey import LOOPBACK, Valkey, cluster


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Valkey]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


def flush(masters: list[Valkey], what: str) -> None:
    for node in masters:
        with node.client() as client:
            client.execute_command(what)


@pytest.fixture
def clustered(masters: list[Valkey]) -> Iterator[CheckpointStore]:
    flush(masters, "FLUSHALL")
    hosts = ",".join(f"{LOOPBACK}:{node.port}" for node in masters[:2])
    with open_store(f"redis+cluster://{hosts}") as store:
        yield store


@pytest.mark.parametrize("agent_id", ["agent", "{another}", "a third %7B", "\0", "🦊" * 512])
def test_every_operation_works_on_a_cluster(clustered: CheckpointStore, agent_id: str) -> None:
    call_every_method(clustered, agent_id)


class TestEventLog(EventLogContract):
    @pytest.fixture
    def store(self, clustered: CheckpointStore) -> CheckpointStore:
        return clustered

    @pytest.fixture
    def other_store(self, masters: list[Valkey]) -> Iterator[CheckpointStore]:
        with open_store(f"redis+cluster://{LOOPBACK}:{masters[0].port}") as other:
            yield other


def test_agents_spread_over_all_masters_and_are_all_found(
    clustered: CheckpointStore, masters: list[Valkey]
) -> None:
    saved = {f"agent {number}": work(clustered, f"agent {number}", 2) for number in range(40)}
    for node in masters:
        with node.client() as client:
            logs = [key for key in client.scan_iter() if key.endswith(b":log")]
        assert len(logs) > 3
    assert sorted(clustered.agents()) == sorted(saved)
    for name, (first, second) in saved.items():
        assert clustered.load(first.id) == first
        assert clustered.load_latest(name) == second


def test_a_deleted_agent_leaves_only_markers_on_the_masters(
    clustered: CheckpointStore, masters: list[Valkey]
) -> None:
    for number in range(10):
        call_every_method(clustered, f"agent {number}")
    left = 0
    for node in masters:
        with node.client() as client:
            assert client.dbsize() == len(markers(client))
            left += client.dbsize()
    assert left == 1, "run 3 was open"


def test_the_masters_are_checked_for_risks(clustered: CheckpointStore, masters: list[Valkey]) -> None:
    risks = clustered.risks()
    assert all("append-only file is off" in risk for risk in risks)
    assert {risk.partition(": ")[0] for risk in risks} == {
        f"{LOOPBACK}:{node.port}" for node in masters
    }


def test_the_client_routes_scripts_without_asking_a_server_for_their_keys(
    clustered: CheckpointStore, masters: list[Valkey]
) -> None:
    for number in range(40):
        work(clustered, f"agent {number}", 3)
    flush(masters, "CONFIG RESETSTAT")
    assert len(sweep(clustered, Rules(keep=1))) == 40
    for node in masters:
        with node.client() as client:
            assert "cmdstat_evalsha" in client.info("commandstats")
            assert "cmdstat_command|getkeys" not in client.info("commandstats")


def test_scripts_flushed_from_a_cluster_are_loaded_again(
    clustered: CheckpointStore, masters: list[Valkey]
) -> None:
    work(clustered, "agent", 1)
    flush(masters, "SCRIPT FLUSH")
    work(clustered, "agent", 1)
    assert len(clustered.list("agent")) == 2


def test_a_cluster_client_that_was_passed_in_is_not_closed(
    clustered: CheckpointStore, masters: list[Valkey]
) -> None:
    nodes = [ClusterNode(LOOPBACK, node.port) for node in masters]
    with RedisCluster(startup_nodes=nodes, decode_responses=True) as client:
        with RedisCheckpointStore(client) as store:
            call_every_method(store, "agent")
        assert client.ping()


def test_a_sweep_works_on_a_cluster(clustered: CheckpointStore, masters: list[Valkey]) -> None:
    latest = {f"agent {number}": work(clustered, f"agent {number}", 4)[-1] for number in range(20)}
    flush(masters, "SCRIPT FLUSH")

    assert sweep(clustered, Rules(keep=1)) == sorted(latest)
    assert sweep(clustered, Rules(keep=1)) == []
    assert {name: clustered.list(name) for name in latest} == {n: [c] for n, c in latest.items()}
    clustered.schedule("no-such-agent", 60, Schedule.SWEEP)
    assert [found.subject for found in clustered.findings(repair=True)] == ["no-such-agent"]
    assert list(clustered.findings()) == []


def test_a_single_node_of_a_cluster_works_without_a_clusters_client(tmp_path: Path) -> None:
    with cluster(tmp_path, masters=1) as [node], RedisCheckpointStore.from_url(node.url) as store:
        step = make_step("agent")
        store.record_step(step)
        [saved] = work(store, "agent", 1)
        assert store.steps("agent", step.run_id) == [step]
        assert store.list("agent") == [saved]
        assert list(store.agents()) == ["agent"]
        assert [name for name, _ in store.claim_due(9, 60, Schedule.SWEEP)] == ["agent"]
