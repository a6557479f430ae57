from __future__ import annotations

import pytest

from celery_ckpt import CheckpointStore, RedisCheckpointStore, open_store
from celery_ckpt.store import DEFAULT_REMEMBER
from tests.support.redis_agents import call_every_method, markers, run, step, work
from tests.support.servers.valkey import Valkey

NAMES = [
    *("a", "{a}", "a}", "{a", "%7Ba%7D", "{}", "}{", "%", "%25", "%2525"),
    *("a}:log", "a:log", "{a}:log", "a}:meta", "agents:a", "ids:a", "agents", "meta", "*"),
    *(" ", "a ", " a", "\n", "a\nb", "\0", "a\0b", "a\r\nb", "\t", "$5", "../../etc"),
    *("é", "e\u0301", "日本語", "🦊", "x" * 512, "x" * 511, "🦊" * 512),
]


@pytest.fixture(params=["ckpt:", "", "agents:", "my app/%7B*:"])
def prefixed(request: pytest.FixtureRequest, redis_url: str) -> CheckpointStore:
    with open_store(redis_url, key_prefix=request.param) as store:
        yield store


def test_agents_of_any_name_are_isolated(prefixed: CheckpointStore) -> None:
    saved = {name: work(prefixed, name, 2) for name in NAMES}
    leases = {name: prefixed.acquire(name, f"owner of {name}"[:512], 30) for name in NAMES}
    for name in NAMES:
        prefixed.record_step(step(name, value=name), leases[name])
    for name in NAMES:
        assert prefixed.list(name) == saved[name][::-1]
        assert prefixed.load(saved[name][0].id) == saved[name][0]
        assert prefixed.holder(name).owner == f"owner of {name}"[:512]
        assert [each.value for each in prefixed.steps(name, "run-1")] == [name]
    assert sorted(prefixed.agents()) == sorted(NAMES)


def test_deleting_an_agent_does_not_affect_the_others(prefixed: CheckpointStore) -> None:
    saved = {name: work(prefixed, name, 1) for name in NAMES}
    staying = set(NAMES)
    for name in NAMES:
        assert prefixed.delete(name) == 1
        staying.discard(name)
        assert set(prefixed.agents()) == staying
    assert all(prefixed.load_latest(name) is None for name in saved)


def test_run_ids_and_step_keys_do_not_collide(store: RedisCheckpointStore) -> None:
    pairs = [("a:b", "c"), ("a", "b:c"), ("3:a:b", "c"), ("1", ":a"), ("\0", "\n"), ("é", "🦊")]
    for run_id, key in pairs:
        store.record_step(step("agent", key).model_copy(update={"run_id": run_id}))
    for run_id, key in pairs:
        assert [each.key for each in store.steps("agent", run_id)] == [key]


def test_a_deleted_agent_leaves_nothing_but_markers_of_open_runs(
    store: RedisCheckpointStore, valkey: Valkey
) -> None:
    for name in NAMES[:5]:
        call_every_method(store, name)
        work(store, name, 3)
        lease = store.acquire(name, "me", 30)
        store.record_step(step(name), lease)
        assert store.delete(name) == 3
    with valkey.client() as client:
        left = markers(client)
        assert list(client.scan_iter()) == list(left)
        assert all(0 < seconds <= DEFAULT_REMEMBER for seconds in left.values())
        assert [client.get(key) for key in left] == [b""], "run 3 was open"


def test_an_agent_deleted_by_another_client_is_listed_again_when_a_run_starts(
    store: RedisCheckpointStore, redis_url: str
) -> None:
    store.start_run(run("agent"), "me", 30)
    with open_store(redis_url) as other:
        other.delete("agent")
    store.start_run(run("agent"), "me", 30)
    assert list(store.agents()) == ["agent"]
