"""The fixture ``site``: one worker for all tests of a module, for tests that do not harm it.

A module sets options in ``SITE``: of ``Configuration`` and, under ``worker``, of ``Worker``.
Its tests identify their runs by id. They must not use ``broker`` or ``celery_app``, which empty the
server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery

from tests.support.ledger import Ledger
from tests.support.servers.valkey import Valkey
from tests.support.workers.broker import BACKEND_DB, STORE_DB, RedisBroker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import app_of
from tests.support.workers.processes import Worker

__all__ = ["site"]


@dataclass(frozen=True)
class Site:
    """An app and its worker, with their ledger and broker."""

    app: Celery
    worker: Worker
    ledger: Ledger
    broker: RedisBroker
    configuration: Configuration


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, broker_server: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The worker of this module."""
    with broker_server.client() as client:
        client.flushall()
    wanted: dict[str, Any] = dict(getattr(request.module, "SITE", {}))
    options = {"pool": "threads", "concurrency": 4, **wanted.pop("worker", {})}
    directory = tmp_path_factory.mktemp("site")
    broker, ledger = RedisBroker(broker_server), Ledger(directory / "ledger")
    configuration = Configuration(
        broker_url=broker.url(),
        backend_url=broker_server.url_of(BACKEND_DB),
        store_url=broker_server.url_of(STORE_DB),
        ledger=ledger.path,
        **wanted,
    )
    with (
        app_of(configuration) as app,
        Worker(directory, configuration.environment(), ledger=ledger, **options) as worker,
    ):
        yield Site(app, worker, ledger, broker, configuration)
