"""Thousands of old runs of one agent: short scripts delete them, and no run is read without need."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from celery_ckpt import RedisCheckpointStore
from celery_ckpt.records import RunStatus, Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.retention.report import PrunePlan
from celery_ckpt.stores.redis.run_line import run_line
from celery_ckpt.stores.redis.server import Call
from celery_ckpt.testing import make_run, make_step
from celery_ckpt.testing.contract.fixtures import judged, settled, sweep

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
AGENT, RUNS = "ckpt:{agent}:agent", "ckpt:{agent}:runs"
#: See run_delete.lua. While a server shrinks its table, it reads more entries than requested.
RUNS_AT_ONCE, BYTES_AT_ONCE, STEPS_AT_ONCE = 100 + 400, 100_000, 500


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


def fill(client: Redis, count: int, **fields: Any) -> None:
    """Add old runs beside the one that exists, in the format of the store."""
    pipeline = client.pipeline(transaction=False)
    for number in range(count):
        facts = {"status": RunStatus.SUCCEEDED, "delivered": True, "ended_at": NOON, **fields}
        line = run_line(make_run("agent", f"old {number}", **facts), 10**9)
        pipeline.hset(RUNS, f"old {number}", f"{number + 2} - ".encode() + line)
    pipeline.hset(AGENT, "runs", count + 1)
    pipeline.execute()


def parts(store: RedisCheckpointStore, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Return a list that receives the reply of each ``forget_runs`` from now on."""
    replies, send = [], store._server.each

    def sent(*calls: Call) -> list[Any]:
        answered = send(*calls)
        replies.extend(
            reply for call, reply in zip(calls, answered, strict=True) if call.name == "run_delete"
        )
        return answered

    monkeypatch.setattr(store._server, "each", sent)
    return replies


def test_thousands_of_runs_are_deleted_in_batches(
    store: RedisCheckpointStore, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(store, "agent", "last", NOON)
    fill(client, 5000)
    replies = parts(store, monkeypatch)
    [pruned] = store.apply(judged(store, Rules(keep=None, forget_after=1)))

    assert (pruned.runs, client.hlen(RUNS)) == (5000, 1)
    assert pruned.bytes > 5000 * 100
    assert max(count for _, count, *_ in replies) <= RUNS_AT_ONCE
    assert len(replies) >= 5000 / RUNS_AT_ONCE
    assert [run.run_id for run in store.runs("agent")] == ["last"]
    assert list(store.findings()) == []


def test_batches_are_smaller_if_the_runs_are_large(
    store: RedisCheckpointStore, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(store, "agent", "last", NOON)
    fill(client, 100, result="x" * 50_000)
    replies = parts(store, monkeypatch)
    store.apply([PrunePlan(store.snapshots(["agent"])[0], runs_before=NOON)])

    assert client.hlen(RUNS) == 1
    # The first page above the limit is the last one of its part.
    assert max(size for _, _, size, *_ in replies) < BYTES_AT_ONCE + 40 * 50_000


def test_no_run_is_deleted_before_all_its_steps(
    store: RedisCheckpointStore, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["first", "second", "young", "last"]
    steps = STEPS_AT_ONCE * 3 // 4
    for run_id in names:
        end = NOON + HOUR if run_id == "young" else NOON
        settled(store, "agent", run_id, end, RunStatus.FAILED)
        step = make_step("agent", run_id, "template")
        store.record_step(step)
        values = client.hgetall("ckpt:{agent}:steps")
        [value] = [line for field, line in values.items() if field.endswith(b"template")]
        fields = [f"{len(run_id)}:{run_id}:{number}" for number in range(steps)]
        client.hset("ckpt:{agent}:steps", mapping=dict.fromkeys(fields, value))
        client.zadd("ckpt:{agent}:stepidx", {field: 1 for field in fields})
        client.hdel("ckpt:{agent}:steps", f"{len(run_id)}:{run_id}:template")
        client.zrem("ckpt:{agent}:stepidx", f"{len(run_id)}:{run_id}:template")
    replies = parts(store, monkeypatch)
    store.apply([PrunePlan(store.snapshots(["agent"])[0], runs_before=NOON)])

    assert [count for _, count, *_ in replies][-1] == 2
    assert [count for _, count, *_ in replies][:-1] == [0] * (len(replies) - 1)
    assert len(replies) > 1
    assert [run.run_id for run in store.runs("agent")] == ["young", "last"]
    assert client.hlen("ckpt:{agent}:steps") == client.zcard("ckpt:{agent}:stepidx") == 2 * steps
    assert [len(store.steps("agent", run_id)) for run_id in names] == [0, 0, steps, steps]


def test_runs_are_read_again_only_when_one_of_them_is_old_enough(
    store: RedisCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    rules = Rules(keep=None, forget_after=HOUR.total_seconds())
    replies = parts(store, monkeypatch)
    settled(store, "agent", "old", now - HOUR * 0.6)
    sweep(store, rules)
    assert replies == []
    for run_id, ago in {"young": HOUR * 0.5, "younger": HOUR / 4, "last": HOUR / 5}.items():
        settled(store, "agent", run_id, now - ago)
        sweep(store, rules)
    assert len(replies) == 1, "only the first sweep, which did not know yet when they had ended"

    store.schedule("agent", 0, Schedule.SWEEP)
    [plan] = judged(store, rules, later=HOUR * 0.45)
    assert [one.runs for one in store.apply([plan])] == [1]
    assert len(replies) == 2
    assert [run.run_id for run in store.runs("agent")] == ["young", "younger", "last"]


def test_an_unreadable_run_line_is_kept_and_does_no_harm(
    store: RedisCheckpointStore, client: Redis
) -> None:
    for run_id in ("old", "last"):
        settled(store, "agent", run_id, NOON)
    strange = [
        b"",
        b"x",
        b"9 - succeeded 1 1 0 - - {}",
        b'9 - failed 1 1 0 - - {"task":1,"created_at":3}',
    ]
    client.hset(RUNS, mapping={f"strange {n}": line for n, line in enumerate(strange)})
    store.apply([PrunePlan(store.snapshots(["agent"])[0], runs_before=NOON)])

    assert sorted(client.hkeys(RUNS)) == [b"last", *(f"strange {n}".encode() for n in range(4))]


def test_an_agent_without_a_last_added_run_loses_no_runs(
    store: RedisCheckpointStore, client: Redis
) -> None:
    for run_id in ("old", "last"):
        settled(store, "agent", run_id, NOON)
    client.hdel(AGENT, "last")
    store.apply([PrunePlan(store.snapshots(["agent"])[0], runs_before=NOON)])

    assert client.hlen(RUNS) == 2
