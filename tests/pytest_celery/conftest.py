"""pytest-celery for this directory only, in containers or, without a Docker engine, in processes.

The rest of the suite runs with ``-p no:celery``, because it uses the names of the plugin's fixtures for
other things. The plugin consists of fixtures only. Importing them here is therefore the same as loading
it for these tests, and one run of pytest covers both. Its ``default_*`` fixtures are meant to be
replaced:

    default_redis_broker ──> broker_container (containers.py) or broker_process (processes.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_celery import CeleryTestBackend, CeleryTestBroker, CeleryTestWorker, CeleryWorkerContainer
from pytest_celery.plugin import *  # noqa: F403

from tests.pytest_celery.containers import *  # noqa: F403
from tests.pytest_celery.containers import WorkerContainer, WorkerNode
from tests.pytest_celery.places import PROPERTY, Place, found_place
from tests.pytest_celery.processes import *  # noqa: F403
from tests.pytest_celery.stand_ins import LocalWorker, LocalWorkerNode
from tests.support.workers.fixtures import current_app_kept

#: The first test with containers waits until the images are pulled and built.
_CONTAINERS_TIMEOUT = 900


@pytest.fixture(scope="session")
def place() -> Place:
    return found_place()


@pytest.fixture(autouse=True)
def record_place(place: Place, record_property: Any) -> None:
    record_property(PROPERTY, place.said)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only the images are slow, and their time counts for whichever test comes first."""
    for item in items:
        if "place" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(_CONTAINERS_TIMEOUT))


@pytest.fixture(autouse=True)
def other_tests_keep_their_app() -> Iterator[None]:
    with current_app_kept():
        yield


# The plugin makes its own from a set, whose order differs between the processes of xdist.
@pytest.fixture(params=["celery_redis_broker"])
def celery_broker(request: pytest.FixtureRequest) -> CeleryTestBroker:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["celery_redis_backend"])
def celery_backend(request: pytest.FixtureRequest) -> CeleryTestBackend:
    return request.getfixturevalue(request.param)


def _node(name: str) -> Any:
    """Return a fixture that provides the node as a container or as a process."""

    @pytest.fixture
    def node(request: pytest.FixtureRequest, place: Place) -> Any:
        kind = "container" if place.has_containers else "process"
        return request.getfixturevalue(f"{name}_{kind}")

    return node


default_redis_broker = _node("broker")
default_redis_backend = _node("backend")
default_worker_container = _node("worker")
second_default_worker_container = _node("second_worker")


@pytest.fixture
def default_worker_container_cls(place: Place) -> type[CeleryWorkerContainer]:
    return WorkerContainer if place.has_containers else LocalWorker


@pytest.fixture
def default_worker_cls(place: Place) -> type[CeleryTestWorker]:
    return WorkerNode if place.has_containers else LocalWorkerNode
