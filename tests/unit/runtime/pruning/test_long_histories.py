"""Histories that are too long to remove at once are pruned completely nevertheless."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from redis import Redis

from celery_ckpt import Agents, CheckpointStore
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.stores.redis import pruning
from celery_ckpt.testing import make_checkpoint


@pytest.fixture
def app(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    monkeypatch.setattr(pruning, "LONG", 10)
    app = Celery("pruning", broker="memory://", set_as_current=False)
    app.conf.update({"ckpt_store_url": redis_url, "ckpt_keep": 3})
    yield app
    app.close()


@pytest.fixture
def store(app: Celery) -> CheckpointStore:
    return AppContext.of(app).store


def saved(store: CheckpointStore, agent_id: str, count: int) -> list[str]:
    history = [make_checkpoint(agent_id) for _ in range(count)]
    for checkpoint in history:
        store.save(checkpoint)
    return [checkpoint.id for checkpoint in history[::-1]]


def left(store: CheckpointStore, agent_id: str) -> list[str]:
    return [info.id for info in store.history(agent_id)]


def test_one_agent_is_pruned_completely(app: Celery, store: CheckpointStore) -> None:
    newest_first = saved(store, "agent", 25)
    assert Agents(app).prune("agent", keep=2) == 23
    assert left(store, "agent") == newest_first[:2]
    assert Agents(app).prune("agent", keep=2) == 0


def test_pruning_all_deletes_what_a_dry_run_reported(app: Celery, store: CheckpointStore) -> None:
    histories = {name: saved(store, name, count) for name, count in [("long", 25), ("short", 4)]}
    reported: dict[str, int] = {}
    would = Agents(app).prune_all(dry_run=True)
    report = Agents(app).prune_all(
        on_result=lambda one: reported.update({one.agent_id: one.checkpoints})
    )

    assert reported == {"long": 22, "short": 1}
    assert (report.checkpoints, report.agents, report.pruned) == (23, 2, 2)
    assert (would.checkpoints, would.agents, would.pruned) == (23, 2, 2)
    for name, newest_first in histories.items():
        assert left(store, name) == newest_first[:3]
    assert list(store.findings()) == []


def test_pruning_ends_although_the_id_of_a_checkpoint_is_damaged(
    app: Celery, store: CheckpointStore, redis_url: str
) -> None:
    newest_first = saved(store, "agent", 3)
    with Redis.from_url(redis_url) as client:
        client.hset("ckpt:{agent}:agent", b"c:\xff", "spoilt")
        assert Agents(app).prune("agent", keep=1) == 2
        assert Agents(app).prune("agent", keep=1) == 0
        client.hdel("ckpt:{agent}:agent", b"c:\xff")
    assert left(store, "agent") == newest_first[:1]
