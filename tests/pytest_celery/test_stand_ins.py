"""Tests in the style of pytest-celery work without containers as well."""

from __future__ import annotations

from types import ModuleType

import pytest
from celery import Celery
from pytest_celery import CeleryTestSetup
from pytest_celery.vendors.worker.tasks import add

from tests.pytest_celery import gate
from tests.support.wait import until
from tests.support.workers.configuration import FAST_REDELIVERY


@pytest.fixture
def default_worker_tasks(default_worker_tasks: set[ModuleType]) -> set[ModuleType]:
    return {*default_worker_tasks, gate}


@pytest.fixture
def default_worker_app(default_worker_app: Celery) -> Celery:
    default_worker_app.conf.update(task_acks_late=True, broker_transport_options=dict(FAST_REDELIVERY))
    return default_worker_app


def test_a_task_runs(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(ping=True, control=True)

    assert add.s(1, 2).delay().get(timeout=60) == 3


def test_a_task_of_a_killed_worker_runs_after_its_restart(celery_setup: CeleryTestSetup) -> None:
    worker = celery_setup.worker
    result = gate.passing.delay()
    # Not wait_for_log, which checks only once per second.
    until(lambda: " received" in worker.logs(), 20, "the worker has the task")

    worker.kill()
    assert (worker.container.status, worker.get_running_processes_info()) == ("exited", [])
    # Several times on a slow machine: the message is redelivered after a second.
    received = worker.logs().count(" received")
    worker.restart()

    assert worker.logs().count(" ready.") == 2
    gate.open_gate(gate.passing)
    assert result.get(timeout=60)
    until(lambda: worker.logs().count(" received") > received, 5, "it was received again")


def test_the_log_of_a_worker_is_read_through_its_node(celery_setup: CeleryTestSetup) -> None:
    worker = celery_setup.worker

    worker.assert_log_exists(f"{worker.hostname()} ready.")
    worker.assert_log_does_not_exist("Traceback", timeout=1)
