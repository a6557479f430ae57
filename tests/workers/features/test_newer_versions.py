"""During a deploy of a new version: its records are left to its own workers, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from redis import Redis

from celery_ckpt import Agents
from tests.support.tasks.operations import remember
from tests.support.wait import until
from tests.support.workers.broker import STORE_DB, RedisBroker
from tests.support.workers.fixtures import StartWorker

pytestmark = pytest.mark.configured(
    include=("tests.support.tasks.operations",),
    conf={"ckpt_lease_ttl": 2, "ckpt_max_stalled_attempts": 2},
)


@pytest.fixture
def client(broker: RedisBroker) -> Iterator[Redis]:
    with broker.server.client(db=STORE_DB) as client:
        yield client


def written_by_a_newer_version(client: Redis, key: str, old: bytes, new: bytes) -> dict[bytes, bytes]:
    """Store what a newer version would write in a key. Return the previous value."""
    before = client.hgetall(key)
    changed = {field: value.replace(old, new, 1) for field, value in before.items() if old in value}
    assert changed
    client.hset(key, mapping=changed)
    return {field: before[field] for field in changed}


def test_a_run_recorded_by_a_newer_version_is_left_to_that_version(
    celery_app: Celery, client: Redis, start_worker: StartWorker
) -> None:
    result, other = (remember.apply_async((name,), agent_id=name) for name in ("new", "old"))
    key = "ckpt:{new}:runs"
    known = written_by_a_newer_version(client, key, b'{"task"', b'{"format":2,"then":[],"task"')
    worker = start_worker()
    assert other.get(timeout=60) == ["old"]
    refusal = f"run={result.id} error=The record of run {result.id!r} of agent 'new' has"
    until(lambda: refusal in worker.log(), 15, "it is postponed")
    assert not result.ready()
    assert client.hget("ckpt:{new}:agent", "token") is None, "no attempt has begun"

    client.hset(key, mapping=known)

    assert result.get(timeout=60) == ["new"]
    [run] = Agents(celery_app).runs("new")
    assert (run.attempts, run.stalled) == (1, 0)


def test_an_agent_written_by_a_newer_version_is_left_to_that_version(
    celery_app: Celery, client: Redis, start_worker: StartWorker
) -> None:
    worker = start_worker()
    assert remember.apply_async(("one",), agent_id="new").get(timeout=60) == ["one"]
    known = written_by_a_newer_version(client, "ckpt:{new}:agent", b"1 2 ", b"2 2 ")
    result = remember.apply_async(("two",), agent_id="new")
    refusal = f"Run cannot continue on this worker and was requeued: agent=new task={remember.name}"
    until(lambda: worker.log().count(refusal) >= 2, 25, "it is requeued")
    assert not result.ready()

    client.hset("ckpt:{new}:agent", mapping=known)

    assert result.get(timeout=60) == ["one", "two"]
    assert Agents(celery_app).runs("new")[-1].stalled == 0
