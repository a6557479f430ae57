"""A process is killed after the end of a run is recorded and before Celery has the result.

Also: late duplicates of messages, and runs that kill their own process.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from celery import Celery, chain

from celery_ckpt import Agents
from celery_ckpt.errors import RunStalled
from tests.support.ledger import Ledger
from tests.support.tasks.scenarios import killed_at_its_end, length, poison, reluctant
from tests.support.wait import until
from tests.support.workers.broker import Broker, RedisBroker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import Pool
from tests.support.workers.scenario import (
    assert_right_end,
    on_brokers,
    on_rabbitmq,
    on_redis,
    scenario,
    several_workers,
    uninterrupted,
)

pytestmark = [pytest.mark.usefixtures("celery_app"), scenario()]


@on_brokers("pool", on_redis("prefork", "threads"), on_rabbitmq("prefork"))
def test_a_kill_between_the_end_and_its_result_loses_neither_the_result_nor_the_chain(
    start_worker: StartWorker, ledger: Ledger, broker: Broker, tmp_path: Path, pool: Pool
) -> None:
    # With threads the whole worker dies.
    several_workers(2, start_worker, pool=pool)
    last = chain(killed_at_its_end.s(2, str(tmp_path / "killed")), length.s()).delay()
    first = last.parent

    assert last.get(timeout=60) == uninterrupted(2)[1]
    assert (tmp_path / "killed").exists()
    assert_right_end(first, 2, ledger, broker)
    assert len(ledger.bodies(first.id)) == 1


def test_a_late_duplicate_of_the_message_of_an_ended_run_changes_nothing(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: RedisBroker, tmp_path: Path
) -> None:
    with broker.server.client(db=broker.db) as client:
        result = killed_at_its_end.delay(2, str(tmp_path / "killed"))
        (message,) = client.lrange("celery", 0, -1)
        worker = start_worker()
        assert_right_end(result, 2, ledger, broker)
        before, stored = ledger.notes(), celery_app.backend.get_task_meta(result.id, cache=False)

        # Once with the same delivery tag, and once with another, as a second publisher would send it.
        client.lpush("celery", message, _with_another_tag(message))

    until(lambda: worker.log().count(f"{result.id}] ignored") >= 2, 10, "both duplicates are ignored")
    assert celery_app.backend.get_task_meta(result.id, cache=False) == stored
    assert stored["result"] == uninterrupted(2)
    assert ledger.notes() == before
    broker.assert_clean(5)


def _with_another_tag(message: bytes) -> bytes:
    changed = json.loads(message)
    changed["properties"]["delivery_tag"] = "another"
    return json.dumps(changed).encode()


@scenario(ckpt_max_stalled_attempts=3)
def test_a_run_that_always_kills_its_process_fails_with_the_reason(
    start_worker: StartWorker, celery_app: Celery, ledger: Ledger, broker: Broker
) -> None:
    start_worker()
    result = poison.delay()

    with pytest.raises(RunStalled, match="3"):
        result.get(timeout=60)

    assert [note["attempt"] for note in ledger.notes(result.id, "poisoned")] == [1, 2, 3]
    status = Agents(celery_app).status(result.id)
    assert status.status == "failed"
    assert "RunStalled" in (status.error or "")
    broker.assert_clean(10)


@scenario(ckpt_max_stalled_attempts=1)
def test_hand_offs_before_anything_was_recorded_do_not_stall_a_run(
    start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker(pool="solo")
    result = reluctant.delay(2)
    for attempt in (1, 2):
        ledger.wait_for(lambda note, attempt=attempt: note.facts.get("attempt") == attempt, 20)
        worker.hup()
        worker.wait_ready()

    assert result.get(timeout=60) == 3
    assert len(ledger.notes(result.id, "handed off")) == 2
    broker.assert_clean(10)
