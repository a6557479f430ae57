"""The data of agents is in no log and in no event, and, if there are keys, nowhere in plain in
the store.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_ckpt import Agents
from celery_ckpt.records import RunStatus
from tests.support.stored_bytes import bytes_of_keys, found_in
from tests.support.tasks.secret_agent import MODULE, SECRET, blurt, hide
from tests.support.wait import until
from tests.support.workers.broker import STORE_DB, RedisBroker
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.monitor import collect_events
from tests.support.workers.processes import FAST

KEY = base64.b64encode(b"k" * 32).decode()
CONF = {"ckpt_lease_ttl": 2, "ckpt_iterations_per_task": 3}
DEBUG = (*FAST, "-E", "-l", "DEBUG")

pytestmark = pytest.mark.configured(include=(MODULE,), conf={**CONF, "ckpt_encryption_keys": [KEY]})


def keys_with_the_secret(broker: RedisBroker, db: int) -> Iterator[str]:
    with broker.server.client(db=db) as client:
        yield from (name for name, data in bytes_of_keys(client) if found_in(data, SECRET))


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_logs_events_and_results_contain_nothing_of_the_conversation(
    request: pytest.FixtureRequest, is_encrypted: bool, tmp_path: Path
) -> None:
    if not is_encrypted:
        request.node.add_marker(pytest.mark.configured(conf=CONF))
    app: Celery = request.getfixturevalue("celery_app")
    broker: RedisBroker = request.getfixturevalue("broker")
    start_worker: StartWorker = request.getfixturevalue("start_worker")
    worker = start_worker(options=DEBUG)
    with collect_events(app) as collected:
        result = hide.delay(str(tmp_path / "marker"))
        assert result.get(timeout=60) >= 3
        until(lambda: "agent-finished" in collected.kinds("agent", result.id), 10, "the event is sent")
        events = str(collected.saw("agent")) + str(collected.saw("task"))
    app.send_task("celery_ckpt.prune")
    until(lambda: "Pruning finished" in worker.log(), 10, "pruning is done")

    assert {"agent-step-changed", "agent-handed-off"} <= set(collected.kinds("agent", result.id))
    assert found_in(worker.log().encode(), SECRET) == []
    assert found_in(events.encode(), SECRET) == []
    for database in {0, 1, 2} - {STORE_DB}:
        assert list(keys_with_the_secret(broker, database)) == []
    assert bool(list(keys_with_the_secret(broker, STORE_DB))) != is_encrypted


def test_arguments_results_and_errors_are_encrypted_in_the_store(
    celery_app: Celery, broker: RedisBroker, start_worker: StartWorker
) -> None:
    start_worker()
    returned, failed = blurt.delay(SECRET, False), blurt.delay(SECRET, True)
    assert returned.get(timeout=60) == SECRET
    with pytest.raises(RuntimeError, match=SECRET):
        failed.get(timeout=60)

    agents = Agents(celery_app)
    until(lambda: not agents.store.activity(failed.id).open, 10, "it is settled")
    assert agents.runs(returned.id)[0].result == SECRET
    [run] = agents.runs(failed.id)
    assert (run.status, run.error) == (RunStatus.FAILED, f"RuntimeError: {SECRET}")
    assert list(keys_with_the_secret(broker, STORE_DB)) == []


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_worker_without_the_key_leaves_the_run_to_one_that_has_it(
    celery_app: Celery, start_worker: StartWorker, has_keys: bool
) -> None:
    other = base64.b64encode(b"o" * 32).decode()
    keyless = {**CONF, **({"ckpt_encryption_keys": [other]} if has_keys else {})}
    stranger = start_worker(environment={"CKPT_TEST_CONF": json.dumps(keyless)})
    result = blurt.delay("hello", False)
    until(lambda: "Run cannot start yet" in stranger.log(), 15, "it is refused")
    assert "is encrypted with the key" in stranger.log()
    assert not result.ready()

    stranger.term()
    start_worker()

    assert result.get(timeout=60) == "hello"
    assert Agents(celery_app).runs(result.id)[0].stalled == 0
