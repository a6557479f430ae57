"""The nodes of a setup as processes. ``conftest.py`` decides whether they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.pytest_celery.stand_ins import LocalRedis, LocalWorker
from tests.support.servers.valkey import APPEND_ONLY, Valkey

__all__ = [
    "backend_process",
    "broker_process",
    "second_worker_process",
    "start_process",
    "worker_process",
]


class StartProcess(Protocol):
    """Start a worker of the setup in a directory of this name. It ends with the test."""

    def __call__(self, name: str) -> LocalWorker: ...


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[LocalRedis]:
    with Valkey(tmp_path / "broker", *APPEND_ONLY) as server:
        yield LocalRedis("broker", server)


@pytest.fixture
def backend_process(tmp_path: Path) -> Iterator[LocalRedis]:
    with Valkey(tmp_path / "backend", *APPEND_ONLY) as server:
        yield LocalRedis("backend", server)


@pytest.fixture
def start_process(
    tmp_path: Path,
    default_worker_initial_content: dict[str, bytes],
    default_worker_command: list[str],
    default_worker_env: dict[str, str],
) -> Iterator[StartProcess]:
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
def worker_process(start_process: StartProcess) -> LocalWorker:
    worker = start_process("worker")
    worker.ready()
    return worker


@pytest.fixture
def second_worker_process(start_process: StartProcess) -> LocalWorker:
    # Without waiting: the setup waits for all its workers.
    return start_process("second")
