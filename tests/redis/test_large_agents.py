"""An agent with 50,000 open runs, and a run with 100,000 steps: no script stops the server for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_ckpt import Agents, RedisCheckpointStore
from celery_ckpt.clock import system_clock
from celery_ckpt.records import MANY_RUNS, RunRecord, RunStatus
from celery_ckpt.retention.policy import Rules
from celery_ckpt.runtime.broker.unacked import Unacked
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.worker.watchdog import Watchdog
from celery_ckpt.stores.encoding import encoded
from celery_ckpt.stores.redis.run_line import run_line
from celery_ckpt.stores.redis.steps import run_prefix
from celery_ckpt.testing.contract.fixtures import sweep
from celery_ckpt.testing.factories import make_checkpoint, make_run, make_step
from tests.support.servers.valkey import Valkey

RUNS, STEPS = 50_000, 100_000
#: Microseconds after which the server logs a command or a script.
SLOW = 10_000
#: On a busy machine, any script can take long: its server waits for a processor. So what takes long
#: each time is slow, and a page that is read by many scripts is slow if most of them are.
TRIES = 4
PAGE = 5_000
ENVELOPE = {
    "headers": {"id": "x", "task": "t", "filling": "y" * 400},
    "properties": {},
    "text": "[[], {}, {}]",
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "exchange": "",
    "routing_key": "celery",
}


@pytest.fixture
def client(valkey: Valkey, redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        before = client.config_get("slowlog-log-slower-than")
        client.config_set("slowlog-log-slower-than", SLOW)
        yield client
        client.config_set("slowlog-log-slower-than", before["slowlog-log-slower-than"])


def name(number: int) -> str:
    return f"run {number:05}"


def fill_runs(client: Redis, agent_id: str = "agent", **fields: Any) -> None:
    """Add queued runs to an agent that has none, in the format of the store."""
    key = f"ckpt:{{{agent_id}}}:"
    line = run_line(make_run(agent_id, "run", envelope=ENVELOPE, **fields), 10**9)
    for first in range(0, RUNS, PAGE):
        numbers = range(first + 1, first + PAGE + 1)
        lines = {name(number): b"%d - %b" % (number, line) for number in numbers}
        client.hset(f"{key}runs", mapping=lines)
        client.zadd(f"{key}open", {name(number): number for number in numbers})
    client.hset(f"{key}agent", mapping={"runs": RUNS, "last": name(RUNS)})


def fill_steps(client: Redis, run_id: str, agent_id: str = "agent") -> None:
    """Add steps to a run, in the format of the store."""
    key = f"ckpt:{{{agent_id}}}:"
    value = encoded(make_step(agent_id, run_id, "key", value="x" * 50), 10**9)
    for first in range(0, STEPS, PAGE):
        names = {f"{run_prefix(run_id)}{number:06}": number for number in range(first, first + PAGE)}
        client.hset(f"{key}steps", mapping={n: b"%d %b" % (i + 1, value) for n, i in names.items()})
        client.zadd(f"{key}stepidx", {n: i // 10 for n, i in names.items()})
    client.hset(f"{key}agent", "steps", STEPS)


def copy(client: Redis, agent_id: str, to: str) -> None:
    for key in ("agent", "log", "steps", "stepidx", "runs", "open"):
        client.copy(f"ckpt:{{{agent_id}}}:{key}", f"ckpt:{{{to}}}:{key}")


def assert_short(client: Redis, operation: Callable[[], object], what: str) -> None:
    """Assert that the server can do something without a command or script that takes long."""
    for _ in range(TRIES):
        client.config_resetstat()
        client.slowlog_reset()
        operation()
        logged = [one for one in client.slowlog_get(1000) if one["command"].startswith(b"EVAL")]
        stats = client.info("commandstats")
        scripts = sum(one["calls"] for name, one in stats.items() if "eval" in name)
        if len(logged) <= max(0, scripts - 1) // 2:
            return
    slowest = max(one["duration"] for one in logged)
    pytest.fail(f"{what}: {len(logged)} of {scripts} scripts took up to {slowest} us")


def worked_off(store: RedisCheckpointStore, run_id: str, agent_id: str = "agent") -> RunRecord | None:
    """Start a run and settle it. Return the next one if it must be published."""
    start = store.start_run(make_run(agent_id, run_id), "me", 30)
    assert start.lease is not None, start.run
    return store.settle_run(ended(start.run), start.lease)


def ended(run: RunRecord) -> RunRecord:
    return run.model_copy(update={"status": RunStatus.SUCCEEDED, "ended_at": system_clock.now()})


def test_a_slow_script_is_noticed(client: Redis) -> None:
    fill_runs(client)
    read_all = "for i = 1, 5 do redis.call('HGETALL', KEYS[1]) end"
    with pytest.raises(pytest.fail.Exception, match="all at once: "):
        assert_short(client, lambda: client.eval(read_all, 1, "ckpt:{agent}:runs"), "all at once")


def test_an_agent_with_many_open_runs_does_not_stop_the_server(
    store: RedisCheckpointStore, client: Redis
) -> None:
    fill_runs(client)
    turn, added = count(1), count(RUNS + 1)

    def overtake() -> None:
        late, first, second = next(added), next(turn), next(turn)
        store.add_run(make_run("agent", name(late)))
        given = store.start_run(make_run("agent", name(late)), "me", 30).next
        assert given is not None
        assert given.run_id == name(first)
        following = worked_off(store, name(first))
        assert following is not None
        assert following.run_id == name(second)
        passed_to = store.pass_turn("agent", name(second), 0)
        assert passed_to is not None
        assert passed_to.run_id == name(next(turn))
        cancel(passed_to.run_id)
        # The turn is given on and on: the late run has to be the last one.
        client.hdel("ckpt:{agent}:agent", "active", "youngest_blocked")

    def cancel(run_id: str) -> None:
        lease = store.cancel_run("agent", run_id, "me", 30)
        store.settle_run(store.run("agent", run_id), lease)

    assert_short(client, lambda: store.add_run(make_run("agent", name(next(added)))), "add_run")
    assert_short(client, lambda: worked_off(store, name(next(turn))), "start_run and settle_run")
    assert_short(client, overtake, "an older run gets the turn")
    assert_short(client, lambda: cancel(name(RUNS - next(added) % 1000)), "cancel_run")
    assert_short(client, lambda: store.activity("agent"), "activity")
    assert_short(client, lambda: store.runs("agent"), "runs")
    assert_short(client, lambda: store.last_run("agent"), "last_run")
    assert_short(client, lambda: store.snapshots(["agent"]), "snapshots")
    assert_short(client, lambda: sweep(store, Rules(keep=1, forget_after=1)), "a sweep")
    assert len(store.activity("agent").open) <= MANY_RUNS + 1
    assert store.activity("agent").count == client.zcard("ckpt:{agent}:open") > RUNS - 1000

    doomed = count()

    def delete() -> None:
        agent_id = f"doomed {next(doomed)}"
        copy(client, "agent", agent_id)
        client.slowlog_reset()
        store.delete(agent_id, remember=0)

    assert_short(client, delete, "delete")


@pytest.mark.parametrize("place", ["in line", "not due", "expired", "due at once"])
def test_a_decision_reads_few_of_many_runs_wherever_they_are(
    store: RedisCheckpointStore, client: Redis, place: str
) -> None:
    """Counted: each command of these scripts reads or writes a few entries."""
    now = system_clock.now()
    expired = {"expires_at": now - timedelta(hours=1)} if place == "expired" else {}
    fill_runs(client, **expired)
    if place in ("not due", "due at once"):
        at = 4_000_000_000_000 if place == "not due" else 1_000_000_000_000
        for first in range(0, RUNS, PAGE):
            numbers = range(first + 1, first + PAGE + 1)
            client.zadd("ckpt:{agent}:open", {name(number): at + number for number in numbers})
    store.add_run(make_run("agent", "last"))
    store.start_run(make_run("other", "other"), "me", 30)  # loads the script

    client.config_resetstat()
    start = store.start_run(make_run("agent", "last"), "me", 30)
    calls = sum(one["calls"] for one in client.info("commandstats").values())

    is_first = place in ("not due", "expired")
    assert (start.lease is not None, start.next is not None) == (is_first, not is_first)
    # At most a hundred runs join the line, and a hundred leave it.
    assert calls < 40 + (3 * 100 if place in ("expired", "due at once") else 0)


def test_the_watchdog_checks_an_agent_with_many_open_runs(client: Redis, valkey: Valkey) -> None:
    app = Celery("large", broker="memory://", set_as_current=False)
    app.conf.update(ckpt_store_url=valkey.url)
    context = AppContext.of(app)
    try:
        fill_runs(client)
        dog, unacked = Watchdog(app, None), Unacked(app.connection_for_write())

        def check() -> None:
            context.store.schedule("agent", 0)
            dog.check(unacked)

        assert_short(client, check, "the watchdog's check")
        assert_short(client, lambda: Agents(app).status("agent"), "status")
        assert Agents(app).status("agent").status is RunStatus.QUEUED
    finally:
        context.store.close()


def test_a_run_with_many_steps_does_not_stop_the_server(
    store: RedisCheckpointStore, client: Redis
) -> None:
    start = store.start_run(make_run("agent", "run"), "me", 3600)
    fill_steps(client, "run")
    more, doomed = count(), count()

    def settle() -> None:
        agent_id = f"agent {next(doomed)}"
        copy(client, "agent", agent_id)
        client.slowlog_reset()
        lease = start.lease.model_copy(update={"agent_id": agent_id})
        done = ended(start.run).model_copy(update={"agent_id": agent_id})
        assert store.settle_run(done, lease) is None
        assert store.steps(agent_id, "run") == []
        assert client.exists(f"ckpt:{{{agent_id}}}:stepidx") == 0

    def delete() -> None:
        agent_id = f"agent {next(doomed)}"
        copy(client, "agent", agent_id)
        client.slowlog_reset()
        store.delete(agent_id)

    def drop() -> None:
        first = 10 + 3 * next(more)
        dropped = store.drop_steps("agent", "run", first=first, last=first + 1, lease=start.lease)
        assert dropped == 20

    step = lambda: make_step("agent", "run", f"new {next(more)}", iteration=3)  # noqa: E731
    assert_short(client, lambda: store.record_step(step(), start.lease), "record_step")
    assert_short(client, lambda: store.steps("agent", "run"), "steps")
    assert_short(client, drop, "drop_steps")
    assert_short(client, settle, "settle_run")
    assert_short(client, delete, "delete")
    assert_short(client, lambda: store.save(make_checkpoint("agent"), start.lease), "save")
    assert store.drop_steps("agent", "run", lease=start.lease) > STEPS - 100
    assert client.exists("ckpt:{agent}:steps", "ckpt:{agent}:stepidx") == 0
