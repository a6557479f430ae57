"""The index of changes in Redis: what a page costs, and how entries that are wrong are repaired."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from benchmarks.iterations import counted_trips
from benchmarks.listing import fill, trips_per_hundred
from celery_ckpt import (
    Agents,
    Checkpoint,
    CheckpointStore,
    Conversation,
    RedisCheckpointStore,
    open_store,
)
from celery_ckpt.names import locator
from celery_ckpt.records import AgentPage, RunStatus
from celery_ckpt.testing.contract.agent_pages import AgentPagesContract, all_of, names
from celery_ckpt.testing.factories import make_checkpoint, make_run
from tests.support.servers.acl import as_user, documented_rules
from tests.support.servers.proxies import Proxy
from tests.support.servers.valkey import LOOPBACK, Valkey, cluster

MANY = 100_000
#: Before everything that a test writes.
TIME = 1_700_000_000_000_000


def agents_in(client: Redis) -> list[bytes]:
    """Return all entries."""
    return [entry for key in client.scan_iter("ckpt:changes:*") for entry in client.zrange(key, 0, -1)]


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


# -- what it costs -----------------------------------------------------------------------------------


def test_a_page_of_many_agents_takes_two_round_trips(
    store: RedisCheckpointStore, client: Redis
) -> None:
    fill(client, MANY)
    newest = [f"agent-{number}" for number in range(MANY - 1, MANY - 151, -1)]
    store.page(limit=1)  # the server learns the scripts
    found, after = list[str](), None
    for status in (None, RunStatus.SUCCEEDED, None):
        with counted_trips() as trips:
            page: AgentPage = store.page(status, limit=50, after=after)
        assert trips == [2]
        found += names(page.agents)
        after = page.after
    assert found == newest
    with counted_trips() as trips:
        assert store.page("failed", limit=50).agents == []
    assert trips == [1]


def test_listing_takes_two_round_trips_per_hundred_agents(redis_url: str, client: Redis) -> None:
    assert trips_per_hundred(redis_url, 2000) == 2
    app = Celery(set_as_current=False)
    app.conf.ckpt_store_url = redis_url
    agents = Agents(app)
    with counted_trips() as trips:
        everybody = agents.list()
    assert names(list(everybody)) == [f"agent-{number}" for number in range(1999, -1, -1)]
    assert trips[0] <= 2 * 20 + 2  # and two for the connection
    with counted_trips() as trips:
        page = agents.list("succeeded", limit=50)
    assert (len(page), trips) == (50, [2])


def test_a_rare_prefix_reads_only_the_agents_that_match(
    store: RedisCheckpointStore, client: Redis
) -> None:
    fill(client, 2000)
    store.add_run(make_run("another"), due_in=60)
    store.page(prefix="agent-77", limit=50)  # a server that does not know a script is asked twice
    client.config_resetstat()
    with counted_trips() as trips:
        assert names(store.page(prefix="agent-77", limit=50).agents)[-1] == "agent-77"
    # Five pages of names, and the matching agents.
    assert trips[0] <= 2 * 5
    calls = client.info("commandstats")
    # A script for each page of names, and one for each of the eleven agents.
    assert calls["cmdstat_evalsha"]["calls"] <= 5 + 11


def test_the_outline_of_an_agent_transfers_no_payload_and_no_history(
    store: RedisCheckpointStore, client: Redis
) -> None:
    talk = Conversation()
    for number in range(300):
        talk.append({"role": "user", "content": "x" * 1000})
        state = {"long": "s" * 1000}
        store.save(Checkpoint.new("agent", talk, number, state=state))
    for number in range(5):
        run = make_run("agent", f"run-{number}", envelope={"args": "e" * 100_000})
        store.add_run(run)
        ended = {"status": RunStatus.SUCCEEDED, "result": "r" * 100_000}
        store.settle_run(run.model_copy(update=ended))
    store.outline("agent")
    client.config_resetstat()
    row = store.outline("agent")
    assert row is not None
    assert (row.checkpoints, row.iteration, row.run_id) == (300, 299, "run-4")
    commands = client.info("commandstats")
    assert not {"cmdstat_hgetall", "cmdstat_hkeys", "cmdstat_hscan", "cmdstat_lrange"} & commands.keys()
    assert client.info("stats")["total_net_output_bytes"] < 20_000
    client.config_resetstat()
    assert len(store.run_outlines("agent")) == 5
    assert client.info("stats")["total_net_output_bytes"] < 20_000


def test_saves_and_steps_write_no_entry(store: RedisCheckpointStore, client: Redis) -> None:
    lease = store.start_run(make_run("agent", "run"), "me", 60).lease
    talk = Conversation()
    store.save(make_checkpoint("agent", talk), lease)
    before = agents_in(client)
    client.config_resetstat()
    talk.append({"role": "user", "content": "more"})
    store.save(make_checkpoint("agent", talk), lease)
    store.renew(lease, 60)  # type: ignore[arg-type]
    assert "cmdstat_zadd" not in client.info("commandstats")
    assert agents_in(client) == before


# -- what is wrong, and repaired ---------------------------------------------------------------------


def test_agents_that_changed_at_the_same_time_are_neither_skipped_nor_repeated(
    store: RedisCheckpointStore, client: Redis
) -> None:
    everybody = [f"agent-{number}" for number in range(40)]
    for name in everybody:
        place = f"{TIME} {locator(name)}:{name}"
        store.add_run(make_run(name), due_in=60)
        key = f"ckpt:changes:{locator(name)[0]}"
        client.zrem(
            key, *(one for one in client.zrange(key, 0, -1) if one.endswith(f":{name}".encode()))
        )
        client.zadd(key, {f"* {place}": 0, f"queued {place}": 0})
        client.hset(f"ckpt:{{{name}}}:agent", "changed", f"{TIME} queued")
    for limit in (1, 3, 7):
        for status in (None, "queued"):
            found = names(all_of(store, status, limit))
            assert sorted(found) == sorted(everybody)
    assert list(store.findings()) == []


def test_a_lost_entry_is_found_by_doctor_and_written_again(
    store: RedisCheckpointStore, client: Redis
) -> None:
    store.add_run(make_run("agent"), due_in=60)
    client.delete(*client.keys("ckpt:changes:*"))
    assert all_of(store) == []
    [found] = store.findings()
    assert (found.kind, found.subject, found.can_repair) == ("not listed", "agent", True)
    assert [one.repaired for one in store.findings(repair=True)] == [True]
    assert list(store.findings()) == []
    assert names(all_of(store)) == names(all_of(store, "queued")) == ["agent"]


def test_an_entry_that_is_left_over_is_not_returned_and_removed(
    store: RedisCheckpointStore, client: Redis
) -> None:
    store.add_run(make_run("agent"), due_in=60)
    right = sorted(agents_in(client))
    for name in ("agent", "gone"):
        place = f"{TIME} {locator(name)}:{name}"
        wrong = {f"* {place}": 0, f"running {place}": 0}
        client.zadd(f"ckpt:changes:{locator(name)[0]}", wrong)
    assert names(all_of(store)) == ["agent"]
    assert all_of(store, "running") == []
    assert sorted(agents_in(client)) == right


def test_doctor_removes_entries_that_are_left_over(store: RedisCheckpointStore, client: Redis) -> None:
    store.add_run(make_run("agent"), due_in=60)
    right = sorted(agents_in(client))
    place = f"{TIME} {locator('gone')}:gone"
    client.zadd(f"ckpt:changes:{locator('gone')[0]}", {f"* {place}": 0, "nonsense": 0})
    assert {found.kind for found in store.findings()} == {"left over"}
    assert all(found.repaired for found in store.findings(repair=True))
    assert sorted(agents_in(client)) == right


@pytest.mark.parametrize("shift", [-5, 5])
def test_an_agent_at_a_wrong_place_is_returned_once_and_moved(
    shift: int, store: RedisCheckpointStore, client: Redis
) -> None:
    for name in ("one", "agent", "two"):
        store.add_run(make_run(name), due_in=60)
    key, own = f"ckpt:changes:{locator('agent')[0]}", f"{locator('agent')}:agent"
    changed = client.hget("ckpt:{agent}:agent", "changed").decode().split()[0]
    place = f"{int(changed) + shift * 1_000_000} {own}"
    client.zrem(key, f"* {changed} {own}", f"queued {changed} {own}")
    client.zadd(key, {f"* {place}": 0, f"queued {place}": 0})

    assert sorted(names(all_of(store, limit=1))) == ["agent", "one", "two"]

    assert names(all_of(store)) == ["two", "agent", "one"]
    all_of(store, "queued")
    assert list(store.findings()) == []


def test_an_agent_that_changes_while_its_page_is_read_is_returned(
    store: RedisCheckpointStore, wire: Proxy
) -> None:
    runs = [make_run(name, "run") for name in ("first", "second", "third")]
    for run in runs:
        store.add_run(run)
    with RedisCheckpointStore.from_url(wire.url) as reader:
        reader.page()  # the server learns the scripts, and the connection is open
        happened = wire.before(2, lambda: store.start_run(runs[0], "worker", 60))
        everything = names(reader.page().agents)
        happened.result()
        happened = wire.before(2, lambda: store.start_run(runs[1], "worker", 60))
        queued = names(reader.page(RunStatus.QUEUED).agents)
        happened.result()

    assert everything == ["third", "second", "first"]
    assert queued == ["third"], "the other one is running"
    assert names(store.page().agents) == ["second", "first", "third"]


def test_forged_entries_are_passed(store: RedisCheckpointStore, client: Redis) -> None:
    store.add_run(make_run("agent"), due_in=60)
    for number in range(300):
        client.zadd("ckpt:changes:a", {f"* 9{number:015d} nonsense": 0, b"* \xff": 0})
    assert names(all_of(store, limit=2)) == ["agent"]


def test_a_damaged_agent_is_unreadable_and_hides_no_other(
    store: RedisCheckpointStore, client: Redis
) -> None:
    for name in ("first", "damaged", "wrong", "nonsense", "last"):
        store.add_run(make_run(name, "run"), due_in=60)
    line = client.hget("ckpt:{damaged}:runs", "run")
    client.hset("ckpt:{damaged}:runs", "run", line.replace(b'"task"', b'"tusk"'))
    client.hset("ckpt:{nonsense}:runs", "run", "nonsense")
    client.delete("ckpt:{wrong}:agent")
    client.set("ckpt:{wrong}:agent", "text")
    page = store.page()
    assert names(page.agents) == ["last", "first"]
    assert page.unreadable.keys() == {"damaged", "wrong", "nonsense"}
    assert store.page("queued").unreadable.keys() == page.unreadable.keys()


def test_a_reader_without_the_right_to_write_gets_its_page(tmp_path: Path) -> None:
    with Valkey(tmp_path, config=documented_rules("store.acl")) as server:
        with open_store(as_user(server, "worker"), key_prefix="research:") as store:
            store.add_run(make_run("agent"), due_in=60)
        place = f"{TIME} {locator('gone')}:gone"
        with Redis.from_url(as_user(server, "worker")) as client:
            client.zadd(f"research:changes:{locator('gone')[0]}", {f"* {place}": 0})
        with open_store(as_user(server, "dashboard"), key_prefix="research:") as store:
            assert names(store.page().agents) == ["agent"]


# -- a cluster ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Valkey]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture
def clustered(masters: list[Valkey]) -> Iterator[RedisCheckpointStore]:
    for node in masters:
        with node.client() as client:
            client.flushall()
    with open_store(f"redis+cluster://{LOOPBACK}:{masters[0].port}") as store:
        assert isinstance(store, RedisCheckpointStore)
        yield store


class TestPagesOnACluster(AgentPagesContract):
    @pytest.fixture
    def store(self, clustered: RedisCheckpointStore) -> CheckpointStore:
        return clustered


def test_what_a_writer_left_undone_in_a_cluster_is_repaired(
    clustered: RedisCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clustered.add_run(make_run("agent", "run"), due_in=60)
    clustered.add_run(make_run("other"), due_in=60)
    with monkeypatch.context() as patch:
        # A process that dies after the data and before the entries.
        patch.setattr(clustered._changes, "moves", lambda *args: [])
        clustered.start_run(make_run("agent", "run"), "me", 60)

    assert all_of(clustered, "running") == []
    assert sorted(names(all_of(clustered, limit=1))) == ["agent", "other"]
    # The first list has repaired the entries.
    assert names(all_of(clustered, "running")) == ["agent"]
    assert names(all_of(clustered)) == ["agent", "other"]
    assert list(clustered.findings()) == []
