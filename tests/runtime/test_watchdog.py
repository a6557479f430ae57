"""What a watchdog leaves behind when nothing is open, and what does not stop it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery_workers.broker import Broker
from celery_workers.scenarios import MODULE, count

from celery_ckpt import CheckpointStore
from celery_ckpt.clock import system_clock
from celery_ckpt.maintenance import Rounds
from celery_ckpt.records import RunRecord, RunStatus
from celery_ckpt.runtime.broker import Unacked
from celery_ckpt.runtime.context import AppContext
from celery_ckpt.runtime.watchdog import Watchdog
from celery_ckpt.testing import make_run


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("watched", broker="memory://", set_as_current=False)
    app.conf.ckpt_store_url = "memory://"
    yield app
    app.close()


def ended(store: CheckpointStore) -> None:
    """An agent whose only run has ended, and whose attempt's moment has come."""
    begun = store.start_run(RunRecord(agent_id="a", run_id="a", created_at=system_clock.now()), "me", 9)
    store.settle_run(begun.run.model_copy(update={"status": RunStatus.SUCCEEDED}), begun.lease)
    store.watch("a", 0)


def look(app: Celery) -> None:
    with app.connection_for_write() as connection:
        Watchdog(app, lambda: None).look(Unacked(connection))


def test_a_sweep_is_told_of_an_agent_whose_last_run_was_settled_by_a_worker_that_then_died(
    app: Celery,
) -> None:
    store = AppContext.of(app).store
    ended(store)
    told = store.due(1, 0, Rounds.SWEEP)
    store.unwatch(dict(told), Rounds.SWEEP)  # as if it had died before it told anybody

    look(app)

    assert [agent_id for agent_id, _ in store.due(1, 0, Rounds.SWEEP)] == ["a"]
    assert store.count_due() == 0, "nothing is left to watch"


def test_no_sweep_is_told_of_an_agent_that_was_deleted(app: Celery) -> None:
    store = AppContext.of(app).store
    ended(store)
    store.delete("a")

    look(app)

    assert (store.count_due(), store.count_due(Rounds.SWEEP)) == (0, 0)


@pytest.mark.configured(include=(MODULE,))
@pytest.mark.parametrize("forged", [{"headers": {}}, {"exchange": "", "routing_key": ["celery"]}])
def test_an_agent_whose_message_was_forged_does_not_keep_it_from_the_others(
    celery_app: Celery, broker: Broker, forged: dict[str, Any]
) -> None:
    store = AppContext.of(celery_app).store
    store.add_run(make_run("forged", "forged", envelope=forged), unclaimed=0)
    count.apply_async((1,), agent_id="other")
    with broker.server.client(db=broker.db) as client:
        client.delete("celery")  # it got lost
    store.watch("other", 0)

    look(celery_app)

    assert broker.queue_length() == 1
