"""A client that dies at any command of a sweep or a deletion: a doctor repairs everything that
is left.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from celery_ckpt import Checkpoint, CheckpointStore, RedisCheckpointStore, open_store
from celery_ckpt.clock import system_clock
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.records import RunRecord, RunStatus, Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.stores.redis.server import Call, Server
from celery_ckpt.testing import make_checkpoint, make_conversation, make_run, make_step
from celery_ckpt.testing.contract.fixtures import judged, settled


class Died(BaseException):
    """Raised where the process dies."""


class DyingServer(Server):
    """Sends one command after the other, and dies before the n-th."""

    def __init__(self, client: Any, where: str, at: int) -> None:
        super().__init__(client, where)
        self.left = at

    def _one(self, call: Call) -> Any:
        self.left -= 1
        if self.left == 0:
            raise Died
        return super()._one(call)

    def command(self, *args: Any) -> Any:
        # The source of a script follows the call, and the process died at the call.
        return super().command(*args) if args[0] == "EVAL" else self._one(Call.command(*args))

    def together(self, *calls: Call) -> list[Any]:
        return [self._one(call) for call in calls]

    side_by_side = each = together

    def run(self, script: str, keys: Any, *args: Any) -> Any:
        return self._one(Call.script(script, keys, *args))


def dying(url: str, at: int) -> RedisCheckpointStore:
    store = RedisCheckpointStore.from_url(url)
    store._use(DyingServer(store._server.client, "here", at))
    return store


def content(client: Redis) -> dict[bytes, Any]:
    """Return every key with its content, without due times and other times, which differ in
    each run.
    """
    found: dict[bytes, Any] = {}
    for key in client.scan_iter():
        kind = client.type(key)
        if kind == b"zset":
            found[key] = sorted(client.zrange(key, 0, -1))
        elif kind == b"hash":
            fields = client.hgetall(key)
            found[key] = {name: fields[name] for name in fields if name != b"listed"}
        elif kind == b"list":
            found[key] = client.lrange(key, 0, -1)
    return found


def fill(store: CheckpointStore) -> list[Checkpoint]:
    """Add an agent to prune, one to delete and one to keep. Two of them have ids of their own."""
    now = system_clock.now()
    staying = []
    for agent_id in ("forgotten", "pruned", "stays"):
        for run_id in ("old", "older") if agent_id == "pruned" else ():
            settled(store, agent_id, run_id, now, RunStatus.FAILED)
            store.record_step(make_step(agent_id, run_id, "step"))
        run = make_run(agent_id, agent_id, created_at=now)
        lease = store.start_run(run, "me", 60).lease
        store.record_step(make_step(agent_id, agent_id, "step"), lease)
        for number in range(3):
            plain = make_checkpoint(agent_id, make_conversation(2))
            foreign = Checkpoint(**{**plain.__dict__, "id": f"{agent_id} {number}"})
            store.save(foreign, lease)
        staying.append(foreign)
        if agent_id == "forgotten":
            ended = {"status": RunStatus.SUCCEEDED, "ended_at": now}
            store.settle_run(run.model_copy(update=ended), lease)
    return staying


def sweep_all(store: CheckpointStore, mortal: CheckpointStore) -> None:
    plans = judged(store, Rules(keep=1, forget_after=1), later=timedelta(minutes=1))
    mortal.apply([one for one in plans if one.snapshot.agent_id != "stays"])


def delete(_: CheckpointStore, store: CheckpointStore) -> None:
    store.delete("forgotten")
    store.remove("pruned", ["pruned 0", "pruned 1"])


@pytest.mark.parametrize("act", [sweep_all, delete])
def test_doctor_restores_a_clean_store_after_a_crash_at_any_command(
    act: Callable[[CheckpointStore, CheckpointStore], None],
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_ckpt.stores.redis.doctor.PATIENCE", 0.0)
    with Redis.from_url(redis_url) as client, open_store(redis_url) as store:
        deaths = 0
        while True:
            client.flushdb()
            store.count_due(Schedule.SWEEP)
            [_, pruned, stays] = fill(store)
            staying = content(client)
            with dying(redis_url, deaths + 1) as mortal:
                try:
                    act(store, mortal)
                    break
                except Died:
                    deaths += 1
            list(store.findings(repair=True))
            assert list(store.findings()) == []
            _assert_as_before_or_after(store, content(client), staying)
            # The next process completes the rest. Then the result is the same as without a death.
            for name in list(store.agents()):
                store.schedule(name, 0, Schedule.SWEEP)
            act(store, store)
            list(store.findings(repair=True))
            assert sorted(store.agents()) == ["pruned", "stays"]
            assert [one.id for one in store.list("pruned")][:1] == [pruned.id]
            assert store.load_latest("stays") == stays
            if act is sweep_all:
                assert [run.run_id for run in store.runs("pruned")] == ["pruned"]
                assert client.zrange("ckpt:{pruned}:stepidx", 0, -1) == [b"6:pruned:step"]
            assert not any(b"forgotten" in key for key in content(client))
            names = [b for value in content(client).values() if isinstance(value, list) for b in value]
            assert not any(b"forgotten" in name for name in names)
    assert deaths >= 8


def _assert_as_before_or_after(
    store: CheckpointStore, now: dict[bytes, Any], before: dict[bytes, Any]
) -> None:
    """Assert that each key is one that existed before or after, and that nothing refers to
    deleted data.
    """
    assert now.keys() <= before.keys()
    for key, value in now.items():
        if key.startswith(b"ckpt:ids:"):
            assert all(store.load(name.decode()) is not None for name in value)
        if key.startswith((b"ckpt:agents:", b"ckpt:sweep:")):
            names = {name.split(b":")[-1].decode() for name in value}
            assert names <= set(store.agents())


def test_doctor_rebuilds_a_lost_index(store: RedisCheckpointStore, redis_url: str) -> None:
    store.save(make_checkpoint("a{b}%c 🎈"))
    store.start_run(make_run("running", "running"), "me", 60)
    with Redis.from_url(redis_url) as client:
        for index in ("agents", "sweep", "watchdog"):
            client.delete(*client.keys(f"ckpt:{index}:*"))
    found = [(one.kind, one.subject) for one in store.findings(repair=True)]

    assert ("not listed", "a{b}%c 🎈") in found
    assert ("not listed", "running") in found
    assert sorted(store.agents()) == ["a{b}%c 🎈", "running"]
    assert [name for name, _ in store.claim_due(10, 60)] == ["running"]
    assert sorted(name for name, _ in store.claim_due(10, 60, Schedule.SWEEP)) == [
        "a{b}%c 🎈",
        "running",
    ]
    assert list(store.findings()) == []


@pytest.mark.parametrize(("parts", "left"), [(0, 700), (1, 200)])
def test_steps_that_a_settlement_left_behind_are_found_and_dropped(
    store: RedisCheckpointStore, parts: int, left: int
) -> None:
    """The process dies before a further part of the steps of a run that has succeeded is dropped."""
    start = store.start_run(make_run("agent", "run"), "me", 30)
    for number in range(1200):  # in three parts, the first of them with the settlement
        store.record_step(make_step("agent", "run", f"step {number}"), start.lease)
    run, further = store._server.run, iter(range(parts))

    def die(script: str, *args: Any) -> Any:
        if script == "step_drop" and next(further, None) is None:
            raise Died
        return run(script, *args)

    store._server.run = die  # type: ignore[method-assign]
    with pytest.raises(Died):
        store.settle_run(_ended(start.run), start.lease)
    store._server.run = run  # type: ignore[method-assign]
    failed = store.start_run(make_run("agent", "failed"), "me", 30)
    store.record_step(make_step("agent", "failed"), failed.lease)
    store.settle_run(_ended(failed.run, RunStatus.FAILED), failed.lease)
    assert store.run("agent", "run").is_settled
    assert len(store.steps("agent", "run")) == left

    [found] = [finding for finding in store.findings(repair=True) if "steps of" in finding.what]

    assert (found.what, found.repaired) == ("steps of run run, which has succeeded", True)
    assert store.steps("agent", "run") == []
    assert len(store.steps("agent", "failed")) == 1, "a failed run can be resumed"
    assert [finding for finding in store.findings() if "steps of" in finding.what] == []


def test_a_step_without_the_name_of_its_run_does_not_stop_doctor(
    store: RedisCheckpointStore, redis_url: str
) -> None:
    store.record_step(make_step("damaged"))
    store.record_step(make_step("other"))
    with Redis.from_url(redis_url) as client:
        client.zadd("ckpt:{damaged}:stepidx", {"0::key": 1})

    assert list(store.findings()) == []


def test_a_settlement_returns_the_next_run_although_the_rest_of_the_steps_cannot_be_dropped(
    store: RedisCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = store.start_run(make_run("agent", "run"), "me", 30)
    store.start_run(make_run("agent", "next"), "me", 30)
    for number in range(600):
        store.record_step(make_step("agent", "run", f"step {number}"), start.lease)

    def unavailable(*_: Any) -> int:
        raise StoreUnavailable(where="here", reason="it is away")

    monkeypatch.setattr(store._steps, "drop_rest", unavailable)
    following = store.settle_run(_ended(start.run), start.lease)

    assert following is not None
    assert following.run_id == "next"
    assert len(store.steps("agent", "run")) == 100


def _ended(run: RunRecord, status: RunStatus = RunStatus.SUCCEEDED) -> RunRecord:
    return run.model_copy(update={"status": status, "ended_at": system_clock.now()})
