"""Values that were written into keys manually are named, and do not affect the care for other
agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from redis import Redis

from celery_ckpt import Checkpoint, Conversation, RedisCheckpointStore
from celery_ckpt.errors import CheckpointDamaged, StoreError
from celery_ckpt.records import Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.retention.report import PrunePlan
from celery_ckpt.stores.redis import doctor
from celery_ckpt.testing import make_checkpoint, make_message, make_step
from celery_ckpt.testing.contract.fixtures import judged, settled
from tests.support.redis_agents import run, work
from tests.support.servers.valkey import Valkey

AGENT, RUNS, STEPS = "ckpt:{agent}:agent", "ckpt:{agent}:runs", "ckpt:{agent}:steps"
#: A name that is not text.
NO_TEXT = b"\xff\xfe"
LONGEST = b"x" * 513
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def server(valkey: Valkey, redis_url: str) -> Iterator[Redis]:
    with valkey.client() as client:
        yield client


@pytest.fixture
def saved(store: RedisCheckpointStore) -> list[Checkpoint]:
    work(store, "neighbour", 2)
    return work(store, "agent", 2)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PATIENCE", 0)


@pytest.mark.parametrize("name", [NO_TEXT, b"", LONGEST])
@pytest.mark.parametrize("on", Schedule)
def test_an_invalid_name_in_the_schedule_does_not_block_the_other_agents(
    store, server, saved, on: Schedule, name: bytes
) -> None:
    store.schedule("agent", 0, on)
    for key in store._keys.due_times(on):
        server.zadd(key, {name: 0})

    assert "agent" in [agent_id for agent_id, _ in store.claim_due(100, 10, on)]
    assert all(agent_id for agent_id, _ in store.claim_due(100, 10, on))
    [*found] = (
        one for one in store.findings(repair=True) if "a name that no agent can have" in one.what
    )
    assert len(found) == len(store._keys.due_times(on))
    assert not any("a name that no agent can have" in one.what for one in store.findings())


def test_an_index_with_invalid_names_still_lists_the_others(store, server, saved) -> None:
    for shard in "abcdefghijklmnopqrstuvwxyz234567":
        server.zadd(f"ckpt:agents:{shard}", {b"x:" + NO_TEXT: 0, b"no name": 0})
    assert sorted(store.agents()) == ["agent", "neighbour"]


def test_an_id_that_points_to_no_agent_is_not_found_and_doctor_removes_it(store, server, saved) -> None:
    for shard in "abcdefghijklmnopqrstuvwxyz234567":
        server.hset(f"ckpt:ids:{shard}", "foreign", NO_TEXT)
    assert store.load("foreign") is None
    assert [one for one in store.findings(repair=True) if "foreign" in one.what]
    assert list(store.findings()) == []


@pytest.mark.parametrize("field", [NO_TEXT, b":", b"x:y:z", b"9" * 30])
def test_an_error_about_a_tampered_step_name_names_the_agent(
    store, server, saved, field: bytes
) -> None:
    store.record_step(make_step("agent", "run-1", "key"))
    [value] = server.hgetall(STEPS).values()
    server.hset(STEPS, field, value)
    with pytest.raises(StoreError, match="'agent'"):
        store.rewrite("agent", lambda contents: contents)


@pytest.mark.parametrize("name", [b"", LONGEST])
def test_an_error_about_a_tampered_run_name_names_the_agent(store, server, saved, name: bytes) -> None:
    store.add_run(run("agent"))
    server.hset(RUNS, name, server.hget(RUNS, "run-1"))
    with pytest.raises(StoreError, match="of agent 'agent' is damaged"):
        store.runs("agent")


def test_names_that_are_not_text_are_shown_escaped(store, server, saved) -> None:
    store.add_run(run("agent"))
    server.hset(RUNS, NO_TEXT, server.hget(RUNS, "run-1"))
    server.hset(AGENT, b"c:" + NO_TEXT, server.hget(AGENT, f"c:{saved[0].id}"))
    server.hset(AGENT, "active", NO_TEXT)
    assert {one.run_id for one in store.runs("agent")} == {"run-1", r"\xff\xfe"}
    assert r"\xff\xfe" in {info.id for info in store.history("agent")}
    assert store.activity("agent").active == r"\xff\xfe"
    assert store.load_latest("agent") == saved[-1]


def test_an_agent_without_tip_and_messages_is_not_treated_as_new(store, server, saved) -> None:
    server.hdel(AGENT, "tip")
    server.delete("ckpt:{agent}:log")
    with pytest.raises(CheckpointDamaged, match="'agent'"):
        store.load_latest("agent")


DAMAGE: dict[str, Callable[[Redis], Any]] = {
    "a lease without an end": lambda server: server.hset(AGENT, "expires_ms", "soon"),
    "a log that begins nowhere": lambda server: server.hset(AGENT, "first", "x"),
    "a nonce that is not text": lambda server: server.hset(AGENT, "nonce", NO_TEXT),
    "another kind of key": lambda server: (server.delete(AGENT), server.set(AGENT, "x")),
    "a run without a time of its end": lambda server: (
        server.hset(AGENT, mapping={"last": "run-1", "runs": "1"}),
        server.hset(RUNS, "run-1", b'1 failed 1 0 0 - - {"x":1,"created_at":"x","ended_at":7}'),
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_agent_is_marked_as_damaged_and_does_not_affect_the_others(
    store, server, saved, how: str
) -> None:
    store.acquire("agent", "me", 60)
    DAMAGE[how](server)

    damaged, neighbour = store.snapshots(["agent", "neighbour"])

    assert damaged.damage
    assert len(neighbour.checkpoints) == 2
    assert "agent" in [one.subject for one in store.findings() if one.kind == "damaged"]


def test_an_incomplete_lease_is_a_store_error(store, server, saved) -> None:
    store.acquire("agent", "me", 60)
    server.hdel(AGENT, "owner")
    with pytest.raises(StoreError, match="'agent'"):
        store.holder("agent")
    with pytest.raises(StoreError, match="'agent'"):
        store.acquire("agent", "other", 60)


def test_an_error_of_the_server_about_a_key_names_the_key(store, server, saved) -> None:
    server.delete(AGENT)
    server.set(AGENT, "x")
    for read in (store.load_latest, store.history, store.holder, store.activity, store.policy):
        with pytest.raises(StoreError, match=r"answered about ckpt:\{agent\}:agent: .*WRONGTYPE"):
            read("agent")


def _wrong_kind(key: str) -> Callable[[Redis], object]:
    return lambda server: (server.delete(key), server.set(key, "no such thing"))


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (_wrong_kind("ckpt:{agent}:log"), "WRONGTYPE"),
        (_wrong_kind("ckpt:{agent}:stepidx"), "WRONGTYPE"),
        (lambda server: server.hset(AGENT, "listed", "many"), "number expected"),
    ],
    ids=["log", "steps", "listed"],
)
def test_an_agent_that_cannot_be_pruned_does_not_block_the_others(
    store: RedisCheckpointStore,
    server: Redis,
    caplog: pytest.LogCaptureFixture,
    tamper: Callable[[Redis], object],
    message: str,
) -> None:
    histories = {name: [] for name in ("neighbour", "agent", "other neighbour")}
    for name, history in histories.items():
        for run_id in ("old", "last"):
            settled(store, name, run_id, NOON)
            store.record_step(make_step(name, run_id))
        for number in range(
            3
        ):  # the messages of a later checkpoint are all new, so that the log is trimmed
            history.append(make_checkpoint(name, Conversation(messages=[make_message(f"{number}")])))
            store.save(history[-1])
    tamper(server)
    rules = Rules(keep=1, forget_after=60)
    pruned = {one.agent_id: one for one in store.apply(judged(store, rules))}

    assert (message in caplog.text, "Could not prune agent 'agent'" in caplog.text) == (True, True)
    for name in ("neighbour", "other neighbour"):
        assert (pruned[name].checkpoints, pruned[name].runs) == (2, 1)
        assert store.list(name) == histories[name][-1:]
    [snapshot] = store.snapshots(["agent"])
    drop = [one.id for one in histories["agent"][:2]]
    with pytest.raises(StoreError, match=message):
        store.apply([PrunePlan(snapshot, remove=drop, runs_before=NOON)])
