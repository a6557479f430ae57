"""Beat schedules pruning automatically, with any scheduler, and leaves the user's schedule alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_ckpt import open_store
from celery_ckpt.runtime.pruning.tasks import PRUNE
from celery_ckpt.testing import make_checkpoint
from tests.support.forks import ROOT
from tests.support.wait import until
from tests.support.workers.broker import RedisBroker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.processes import WorkerProcess

AGENTS = "tests.support.tasks.agents"
THEIRS = "theirs"
#: The user's own schedule, which must continue to work beside ours.
CONF = {
    "ckpt_prune_every": 1,
    "ckpt_keep": 2,
    "beat_schedule": {THEIRS: {"task": "their.task", "schedule": 1}},
    "task_routes": {"their.task": {"queue": THEIRS}},
    "beat_max_loop_interval": 1,
}
pytestmark = pytest.mark.configured(include=(AGENTS,), conf=CONF)

StartBeat = Callable[..., WorkerProcess]


@pytest.fixture
def start_beat(configuration: Configuration, tmp_path: Path) -> Iterator[StartBeat]:
    with ExitStack() as running:

        def start(
            scheduler: str = "celery.beat:PersistentScheduler",
            app: str = "tests.support.workers.app",
            name: str = "beat",
            **environment: str,
        ) -> WorkerProcess:
            arguments = [
                "-A",
                app,
                "beat",
                "-l",
                "INFO",
                "-S",
                scheduler,
                "--pidfile=",
                "-s",
                f"{name}.db",
            ]
            variables = {**configuration.environment(), **environment}
            beat = WorkerProcess(tmp_path, arguments, variables, name=name, forked=True)
            running.callback(beat.close)
            return beat.start()

        yield start


def django_database(path: Path) -> dict[str, str]:
    """Create a database with the tables of django-celery-beat. Return the environment that
    leads to it.
    """
    environment = {
        "CKPT_TEST_DJANGO_DB": str(path),
        "DJANGO_SETTINGS_MODULE": "tests.support.workers.django_settings",
    }
    command = [sys.executable, "-m", "django", "migrate", "-v", "0"]
    python_path = {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env={**os.environ, **python_path, **environment}, timeout=240)
    return environment


def started(kind: str, start_beat: StartBeat, configuration: Configuration, tmp_path: Path) -> Any:
    if kind == "redbeat":
        url = {"CKPT_TEST_CONF": json.dumps({**CONF, "redbeat_redis_url": configuration.backend_url})}
        return start_beat("redbeat.RedBeatScheduler", **url)
    if kind == "django":
        scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
        database = django_database(tmp_path / "django.db")
        return start_beat(scheduler, "tests.support.workers.django_app", **database)
    return start_beat()


def messages(broker: RedisBroker, queue: str = "celery") -> list[dict[str, Any]]:
    with broker.server.client() as client:
        return [json.loads(one)["headers"] for one in client.lrange(queue, 0, -1)]


@pytest.mark.parametrize("kind", ["celery", "redbeat", "django"])
def test_beat_publishes_the_pruning_task_next_to_the_entries_of_the_user(
    kind: str,
    start_beat: StartBeat,
    broker: RedisBroker,
    configuration: Configuration,
    tmp_path: Path,
) -> None:
    beat = started(kind, start_beat, configuration, tmp_path)
    until(lambda: messages(broker), 30, f"beat has published something\n{beat.log()}")
    until(lambda: messages(broker, THEIRS), 10, "beat has published the user's task")

    [first, *_] = messages(broker)
    assert first["task"] == PRUNE
    expires = datetime.fromisoformat(first["expires"])
    assert expires <= datetime.now(UTC) + timedelta(seconds=1), "the next message is published"
    assert {message["task"] for message in messages(broker, THEIRS)} == {"their.task"}


def test_two_beats_and_a_worker_prune_the_saved_checkpoints(
    start_beat: StartBeat, start_worker: StartWorker, configuration: Configuration
) -> None:
    with open_store(configuration.store_url) as store:
        saved = {name: [make_checkpoint(name) for _ in range(5)] for name in ("a", "b", "c")}
        for history in saved.values():
            for checkpoint in history:
                store.save(checkpoint)
        worker = start_worker(pool="threads", concurrency=2, wait=False)
        beats = [start_beat(name="one"), start_beat(name="two")]
        worker.wait_ready()
        until(lambda: all(len(store.history(name)) == 2 for name in saved), 20, "all are pruned")

        for name, history in saved.items():
            assert store.list(name) == history[:-3:-1]
        until(lambda: sum(_totals(worker.log())) == 9, 5, "the totals are logged, each once")
        assert all(beat.is_running() for beat in beats)


def _totals(log: str) -> list[int]:
    return [int(count) for count in re.findall(r"finished: Pruned ([0-9]+) checkpoints?", log)]


@pytest.mark.configured(conf={**CONF, "beat_schedule": {PRUNE: {"task": "their.task", "schedule": 1}}})
def test_a_schedule_entry_of_the_user_with_that_name_takes_precedence(
    start_beat: StartBeat, broker: RedisBroker
) -> None:
    start_beat()
    until(lambda: len(messages(broker, THEIRS)) >= 2, 20, "beat has published the user's task twice")

    assert messages(broker) == []


@pytest.mark.configured(conf={**CONF, "ckpt_prune_every": None})
def test_the_beat_entry_can_be_disabled(start_beat: StartBeat, broker: RedisBroker) -> None:
    start_beat()
    until(lambda: len(messages(broker, THEIRS)) >= 2, 20, "beat has published the user's task twice")

    assert messages(broker) == []


def test_a_worker_with_embedded_beat_prunes_automatically(
    start_worker: StartWorker, configuration: Configuration
) -> None:
    with open_store(configuration.store_url) as store:
        history = [make_checkpoint("agent") for _ in range(5)]
        for checkpoint in history:
            store.save(checkpoint)
        worker = start_worker(options=("-B", "-s", "inside.db"))
        until(lambda: len(store.history("agent")) == 2, 20, f"it is pruned\n{worker.log()}")
        assert store.list("agent") == history[:-3:-1]
