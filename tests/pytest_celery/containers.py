"""The nodes of a setup as containers: Valkey, and workers in an image that contains this package.

``conftest.py`` decides whether they are used.
"""

from __future__ import annotations

import fcntl
from contextlib import closing
from typing import Any

import docker
import pytest
from docker.errors import BuildError
from pytest_celery import CeleryTestWorker, CeleryWorkerContainer, RedisContainer
from pytest_celery.defaults import CONTAINER_TIMEOUT, DEFAULT_WORKER_VOLUME
from pytest_docker_tools import container, fxtr, volume

from tests.pytest_celery.places import PYTHON_IMAGE, VALKEY_IMAGE
from tests.support.forks import ROOT
from tests.support.servers.valkey import APPEND_ONLY
from tests.support.wait import until
from tests.support.workers.processes import FAST, READY, START_DEADLINE

__all__ = [
    "backend_container",
    "backend_data",
    "broker_container",
    "broker_data",
    "second_worker_container",
    "worker_container",
    "worker_image",
]

DOCKERFILE = ROOT / "deploy" / "Dockerfile"


class ValkeyContainer(RedisContainer):
    """A Valkey server that keeps what it has acknowledged."""

    @property
    def host_url(self) -> str:
        # Not localhost: if the tests run in a container themselves, the container has another address.
        host, port = self.get_addr("6379/tcp")
        return f"{self.prefix()}{host}:{port}/{self.vhost}"

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        return ["valkey-server", "--save", "", *APPEND_ONLY, "--protected-mode", "no", *args]


class WorkerContainer(CeleryWorkerContainer):
    """A worker. After a restart it is ready when it has logged that again; the old line does
    not count.
    """

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        return super().command(*FAST, *args, **kwargs)

    def restart(self, timeout: int = 10) -> None:
        before = self._ready_count()
        super().restart(timeout)
        until(lambda: self._ready_count() > before, START_DEADLINE, "the worker is ready again")

    def _ready_count(self) -> int:
        return self.logs().count(READY)


class WorkerNode(CeleryTestWorker):
    """A worker node that can report its processes even when none are running."""

    def get_running_processes_info(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        is_running = self.container.status == "running"
        return super().get_running_processes_info(*args, **kwargs) if is_running else []


@pytest.fixture(scope="session")
def worker_image() -> str:
    """Build the image of ``deploy/Dockerfile``, with the packages of pytest-celery instead of a
    model.
    """
    # Processes of xdist build one after the other: all but the first find every layer in the cache.
    with DOCKERFILE.open() as lock, closing(docker.from_env(timeout=600)) as engine:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _built(engine)
        except BuildError as error:
            error.add_note("".join(line.get("stream", "") for line in error.build_log))
            raise


def _built(engine: docker.DockerClient) -> str:
    image, _ = engine.images.build(
        path=str(ROOT),
        dockerfile=str(DOCKERFILE),
        buildargs={"PYTHON_IMAGE": PYTHON_IMAGE, "EXTRAS": "psutil"},
        tag="celery-ckpt-tests",
        forcerm=True,  # also after a failure
    )
    return str(image.id)


def _valkey(data: str) -> Any:
    return container(
        image=VALKEY_IMAGE,
        ports={"6379/tcp": None},
        network="{default_pytest_celery_network.name}",
        # The anonymous volume of the image would be left behind.
        volumes={f"{{{data}.name}}": {"bind": "/data", "mode": "rw"}},
        wrapper_class=ValkeyContainer,
        timeout=CONTAINER_TIMEOUT,
        command=ValkeyContainer.command(),
    )


def _worker() -> Any:
    return container(
        image="{worker_image}",
        environment=fxtr("default_worker_env"),
        network="{default_pytest_celery_network.name}",
        volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
        wrapper_class=WorkerContainer,
        timeout=CONTAINER_TIMEOUT,
        command=fxtr("default_worker_command"),
    )


broker_data, backend_data = volume(), volume()
broker_container, backend_container = _valkey("broker_data"), _valkey("backend_data")
worker_container, second_worker_container = _worker(), _worker()
