"""Agents in tests in the style of pytest-celery, which know only what the workers log."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
from celery import Celery
from pytest_celery import (
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
    RedisTestBackend,
)

from tests.pytest_celery import counter as counting_module
from tests.pytest_celery import gate
from tests.pytest_celery.counter import counting
from tests.support.wait import until

#: The second database of the server that has the results.
STORE = 1


@pytest.fixture
def default_worker_tasks(default_worker_tasks: set[ModuleType]) -> set[ModuleType]:
    return {*default_worker_tasks, counting_module, gate}


@pytest.fixture
def default_worker_app(default_worker_app: Celery, celery_redis_backend: RedisTestBackend) -> Celery:
    store = celery_redis_backend.config(vhost=STORE)["host_url"]
    default_worker_app.conf.update(ckpt_store_url=store, ckpt_lease_ttl=3)
    return default_worker_app


@pytest.fixture
def default_worker_initial_content(
    default_worker_initial_content: dict[str, bytes], celery_redis_backend: RedisTestBackend
) -> dict[str, bytes]:
    """Inside containers, the store has another address."""
    store = celery_redis_backend.config(vhost=STORE)
    app = default_worker_initial_content["app.py"]
    among_workers = app.replace(store["host_url"].encode(), store["url"].encode())
    return {**default_worker_initial_content, "app.py": among_workers}


def _has_exited(worker: CeleryTestWorker) -> bool:
    worker.container.reload()
    return worker.container.status == "exited"


def _numbers(what: str, worker: CeleryTestWorker) -> list[int]:
    """Return the numbers that a worker has logged as such."""
    return [int(number) for number in re.findall(rf"\b{what} (\d+);", worker.logs())]


def test_an_agent_runs(celery_setup: CeleryTestSetup) -> None:
    assert counting.delay(3).get(timeout=60) == [6, 1, 0]

    assert _numbers("adds", celery_setup.worker) == [1, 2, 3]


def test_an_agent_continues_after_its_worker_was_killed_and_restarted(
    celery_setup: CeleryTestSetup,
) -> None:
    worker = celery_setup.worker
    result = counting.delay(5, held=True)
    until(lambda: 3 in _numbers("adds", worker), 20, "it is adding the third number")

    worker.kill()
    worker.restart()

    assert result.get(timeout=60) == [15, 2, 0]
    made = [1, 2, 3, 3, 4, 5]
    assert _numbers("adds", worker) == made, "only the call in flight is repeated"


class TestTwoWorkers:
    @pytest.fixture
    def celery_worker_cluster(
        self,
        celery_worker: CeleryTestWorker,
        second_default_worker_container: CeleryWorkerContainer,
        default_worker_cls: type[CeleryTestWorker],
        default_worker_app: Celery,
    ) -> CeleryWorkerCluster:
        second = default_worker_cls(second_default_worker_container, default_worker_app)
        return CeleryWorkerCluster(celery_worker, second)

    def test_a_worker_that_shuts_down_hands_its_agent_to_the_other_worker(
        self, celery_setup: CeleryTestSetup
    ) -> None:
        workers = list(celery_setup.worker_cluster)
        result = counting.delay(5, held=True)
        until(lambda: any(3 in _numbers("adds", worker) for worker in workers), 20, "it works")
        (one,) = [worker for worker in workers if _numbers("adds", worker)]
        (other,) = [worker for worker in workers if worker is not one]

        one.kill("SIGTERM")
        until(lambda: "Warm shutdown" in one.logs(), 20, "it knows that it is shutting down")
        gate.open_gate(counting)

        total, attempts, retries = result.get(timeout=60)
        # The run may return to a worker that has not exited yet, and be handed off again.
        assert (total, attempts > 1, retries) == (15, True, 0)
        assert _numbers("adds", one) + _numbers("adds", other) == [1, 2, 3, 4, 5]
        assert _numbers("adds", other), "another worker has done the rest"
        until(lambda: _has_exited(one), 20, "the worker has exited")
