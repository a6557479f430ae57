"""pytest-celery for this directory alone, on processes instead of containers.

The rest of the suite runs with ``-p no:celery``: the plugin's fixtures have names that are used there
for other things. It consists of fixtures only, so importing them here is the same as loading it for
the tests below, and one run of pytest has both. Its ``default_*`` fixtures are there to be replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from celery_workers.fixtures import current_app_kept
from pytest_celery import CeleryTestBackend, CeleryTestBroker
from pytest_celery.plugin import *  # noqa: F403
from servers import APPEND_ONLY, Valkey
from stand_ins import LocalRedis, LocalWorker, LocalWorkerNode, StartContainer


@pytest.fixture(autouse=True)
def other_tests_keep_their_app() -> Iterator[None]:
    with current_app_kept():
        yield


# The plugin's own are made from a set, whose order differs between the processes of xdist.
@pytest.fixture(params=["celery_redis_broker"])
def celery_broker(request: pytest.FixtureRequest) -> CeleryTestBroker:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["celery_redis_backend"])
def celery_backend(request: pytest.FixtureRequest) -> CeleryTestBackend:
    return request.getfixturevalue(request.param)


@pytest.fixture
def default_redis_broker(tmp_path: Path) -> Iterator[LocalRedis]:
    with Valkey(tmp_path / "broker", *APPEND_ONLY) as server:
        yield LocalRedis("broker", server)


@pytest.fixture
def default_redis_backend(tmp_path: Path) -> Iterator[LocalRedis]:
    with Valkey(tmp_path / "backend", *APPEND_ONLY) as server:
        yield LocalRedis("backend", server)


@pytest.fixture
def default_worker_container_cls() -> type[LocalWorker]:
    return LocalWorker


@pytest.fixture
def default_worker_cls() -> type[LocalWorkerNode]:
    return LocalWorkerNode


@pytest.fixture
def start_container(
    tmp_path: Path,
    default_worker_initial_content: dict[str, bytes],
    default_worker_command: list[str],
    default_worker_env: dict[str, str],
) -> Iterator[StartContainer]:
    with ExitStack() as running:

        def start(name: str) -> LocalWorker:
            directory = tmp_path / name
            directory.mkdir()
            worker = LocalWorker(
                directory, default_worker_initial_content, default_worker_command, default_worker_env
            )
            running.callback(worker.teardown)
            worker.start()
            return worker

        yield start


@pytest.fixture
def default_worker_container(start_container: StartContainer) -> LocalWorker:
    worker = start_container("worker")
    worker.ready()
    return worker
