"""The fixtures with which a directory of tests gets workers: its conftest imports ``*`` from here.

Not a plugin of the whole suite: pytest-celery has a fixture ``celery_app`` too, and the tests of it
must not get ours.
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

#: Keeps over a kill -9 what was written, without waiting for the disk at each write.
_KEPT = ("--appendonly", "yes", "--appendfsync", "no")
_WORKERS = pytest.StashKey[list[Worker]]()


@pytest.fixture(scope="session")
def broker_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """The server of each xdist worker: broker, result backend and store are databases of it."""
    with Valkey(tmp_path_factory.mktemp("broker"), *_KEPT) as server:
        yield server


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A second server; tests take it as ``other_server``."""
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
    """A server that holds nothing, for what has to fail or go on alone."""
    return _emptied(store_server)


def _emptied(server: Valkey) -> Valkey:
    try:
        with server.client() as client:
            client.flushall()
    except RedisError:
        # The test before has left it dead or frozen.
        server.restart()
        return _emptied(server)
    return server


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What the bodies of this test do."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def configuration(
    request: pytest.FixtureRequest, broker: Broker, main_server: Valkey, ledger: Ledger
) -> Configuration:
    """What the app and the workers of this test share; changed by ``@pytest.mark.configured(...)``."""
    plain = Configuration(
        broker_url=broker.url(),
        backend_url=main_server.url_of(BACKEND_DB),
        store_url=main_server.url_of(STORE_DB),
        ledger=ledger.path,
    )
    changes: dict[str, Any] = {}
    # The nearest mark comes first, and wins.
    for mark in reversed(list(request.node.iter_markers("configured"))):
        changes |= mark.kwargs
    return replace(plain, **changes)


@pytest.fixture
def celery_app(configuration: Configuration) -> Iterator[Celery]:
    """The app of the test's own process, current while the test runs."""
    with app_of(configuration) as app:
        yield app


@contextmanager
def app_of(configuration: Configuration) -> Iterator[Celery]:
    """An app that is current in here; its connections are closed afterwards."""
    with current_app_kept():
        app = configuration.make_app()
        yield app
        app.backend.result_consumer.stop()
        app.backend.client.connection_pool.disconnect()
        app.close()


@contextmanager
def current_app_kept() -> Iterator[None]:
    """Whichever app is current in here, the one before is again afterwards; connections are closed."""
    before = _tls.current_app
    try:
        yield
    finally:
        kombu.pools.reset()
        _set_current_app(before)


class StartWorker(Protocol):
    """Start a worker of this test's app, and wait until it is ready unless told not to."""

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
    """A factory of workers (``Worker`` has the options); they end with the test."""
    numbers = count(1)
    workers = request.node.stash.setdefault(_WORKERS, [])
    with ExitStack() as running:

        def start(
            *, wait: bool = True, environment: dict[str, str] | None = None, **options: Any
        ) -> Worker:
            options.setdefault("name", f"worker{next(numbers)}")
            # A variable may be one that a module reads when it is imported.
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
    """Show with a failed test what its workers and its bodies wrote."""
    report = yield
    if report.failed:
        for worker in item.stash.get(_WORKERS, []):
            report.sections.append((f"log of {worker.name}", worker.log()))
        ledger = getattr(item, "funcargs", {}).get("ledger")
        if isinstance(ledger, Ledger):
            report.sections.append(("ledger", str(ledger)))
    return report
