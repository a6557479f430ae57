"""The fixtures for tests with workers. The conftest of a directory imports ``*`` from here.

This is not a plugin of the whole suite, because pytest-celery has a fixture ``celery_app`` too, and
its tests must get that one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import kombu.pools
import pytest
from celery import Celery
from celery._state import _set_current_app, _tls
from redis.exceptions import RedisError

from tests.support.ledger import Ledger
from tests.support.servers.rabbitmq import RabbitMq
from tests.support.servers.valkey import Valkey
from tests.support.workers.broker import BACKEND_DB, STORE_DB, Broker, RabbitBroker, RedisBroker
from tests.support.workers.configuration import Configuration
from tests.support.workers.processes import Worker

__all__ = [
    "broker",
    "broker_server",
    "celery_app",
    "configuration",
    "ledger",
    "main_server",
    "other_server",
    "pytest_runtest_makereport",
    "rabbitmq_server",
    "start_worker",
    "store_server",
]

#: Options with which a server keeps its data over a SIGKILL without waiting for the disk at each write.
_KEPT = ("--appendonly", "yes", "--appendfsync", "no")
_WORKERS = pytest.StashKey[list[Worker]]()


@pytest.fixture(scope="session")
def broker_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """The server of each xdist worker, with databases for broker, result backend and store."""
    with Valkey(tmp_path_factory.mktemp("broker"), *_KEPT) as server:
        yield server


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A second server for each xdist worker. Tests use it as ``other_server``."""
    with Valkey(tmp_path_factory.mktemp("store"), *_KEPT) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """The RabbitMQ node of each xdist worker; started for the first test that runs on RabbitMQ."""
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def main_server(broker_server: Valkey) -> Valkey:
    """An empty server, with databases for the result backend, the store and, on Redis, the broker."""
    return _emptied(broker_server)


@pytest.fixture
def broker(request: pytest.FixtureRequest, main_server: Valkey) -> Broker:
    """A broker without messages: on Redis, or on the broker that the parameter of the test names."""
    if getattr(request, "param", "redis") == "rabbitmq":
        return RabbitBroker(request.getfixturevalue("rabbitmq_server"))
    return RedisBroker(main_server)


@pytest.fixture
def other_server(store_server: Valkey) -> Valkey:
    """An empty second server, for what must fail, or keep running, alone."""
    return _emptied(store_server)


def _emptied(server: Valkey) -> Valkey:
    try:
        with server.client() as client:
            client.flushall()
    except RedisError:
        # The previous test has killed or frozen it.
        server.restart()
        return _emptied(server)
    return server


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger of what the bodies of this test do."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def configuration(
    request: pytest.FixtureRequest, broker: Broker, main_server: Valkey, ledger: Ledger
) -> Configuration:
    """The configuration of the app and the workers. ``@pytest.mark.configured(...)`` changes it."""
    plain = Configuration(
        broker_url=broker.url(),
        backend_url=main_server.url_of(BACKEND_DB),
        store_url=main_server.url_of(STORE_DB),
        ledger=ledger.path,
    )
    changes: dict[str, Any] = {}
    # The mark nearest to the test comes first, and wins.
    for mark in reversed(list(request.node.iter_markers("configured"))):
        changes |= mark.kwargs
    return replace(plain, **changes)


@pytest.fixture
def celery_app(configuration: Configuration) -> Iterator[Celery]:
    """The app in the process of the test, current while the test runs."""
    with app_of(configuration) as app:
        yield app


@contextmanager
def app_of(configuration: Configuration) -> Iterator[Celery]:
    """Make an app and make it current inside the block; close its connections afterwards."""
    with current_app_kept():
        app = configuration.make_app()
        yield app
        app.backend.result_consumer.stop()
        app.backend.client.connection_pool.disconnect()
        app.close()


@contextmanager
def current_app_kept() -> Iterator[None]:
    """Restore the current app after the block, and close pooled connections."""
    before = _tls.current_app
    try:
        yield
    finally:
        kombu.pools.reset()
        _set_current_app(before)


class StartWorker(Protocol):
    """Start a worker of the app of this test, and wait until it is ready unless ``wait`` is false."""

    def __call__(
        self, *, wait: bool = True, environment: dict[str, str] = ..., **options: Any
    ) -> Worker: ...


@pytest.fixture
def start_worker(
    request: pytest.FixtureRequest,
    configuration: Configuration,
    ledger: Ledger,
    tmp_path: Path,
) -> Iterator[StartWorker]:
    """Return a function that starts workers, which end with the test. ``Worker`` has the options."""
    numbers = count(1)
    workers = request.node.stash.setdefault(_WORKERS, [])
    with ExitStack() as running:

        def start(
            *, wait: bool = True, environment: dict[str, str] | None = None, **options: Any
        ) -> Worker:
            options.setdefault("name", f"worker{next(numbers)}")
            # A module may read the variable when it is imported, which a fork has already done.
            options.setdefault("forked", not environment)
            variables = {**configuration.environment(), **(environment or {})}
            worker = Worker(tmp_path, variables, ledger=ledger, **options)
            workers.append(worker)
            running.callback(worker.close)
            worker.start()
            return worker.wait_ready() if wait else worker

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the workers and the ledger to the report of a failed test."""
    report = yield
    if report.failed:
        for worker in item.stash.get(_WORKERS, []):
            report.sections.append((f"log of {worker.name}", worker.log()))
        ledger = getattr(item, "funcargs", {}).get("ledger")
        if isinstance(ledger, Ledger):
            report.sections.append(("ledger", str(ledger)))
    return report
