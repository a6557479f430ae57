"""Processes that replace the containers of pytest-celery.

Its nodes (``celery_setup.worker``, ``.broker``, ``.backend``) know only the container that they wrap.
For them, these classes are containers, but inside is a worker process or a Valkey server: no Docker. As
with a container, SIGKILL ends all processes, and any other signal is sent to the main process.

One deliberate difference to the containers of pytest-celery: a worker that was restarted is ready when
it has logged that *again*. There, the old line in the log counts.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from pytest_celery import CeleryTestWorker, CeleryWorkerContainer, RedisContainer
from pytest_docker_tools.exceptions import ContainerFailed

from tests.support.forks import ROOT
from tests.support.servers.valkey import LOOPBACK, Valkey
from tests.support.workers.processes import FAST, WorkerProcess


class _Process:
    """What both kinds of containers share. It comes first among the bases, so that it takes
    precedence.
    """

    def __init__(self, name: str) -> None:
        self._id, self._name = uuid4().hex, name

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return self._name

    @property
    def status(self) -> str:
        """Return the status in Docker's terms."""
        return "running" if self._is_running() else "exited"

    def reload(self) -> None:
        """Do nothing: every attribute is always current."""

    def ready(self) -> bool:
        if not self._is_running():
            raise ContainerFailed(self, f"{self.name} has exited")
        return True

    def _is_running(self) -> bool:
        raise NotImplementedError


class LocalRedis(_Process, RedisContainer):
    """A Valkey server. Broker and result backend have one each, and each can be killed alone."""

    def __init__(self, name: str, server: Valkey) -> None:
        super().__init__(name)
        self._server = server

    @property
    def url(self) -> str:
        return f"{self.prefix()}{LOOPBACK}:{self.port}/{self.vhost}"

    host_url = url

    @property
    def hostname(self) -> str:
        return LOOPBACK

    @property
    def port(self) -> int:
        return self._server.port

    def logs(self) -> str:
        return (self._server.directory / "log").read_text()

    def kill(self, signal: str | int | None = None) -> None:
        if _number(signal) == _number("SIGKILL"):
            self._server.kill()
        else:
            self._server.signal(_number(signal))

    def restart(self, timeout: int = 10) -> None:
        self._server.restart()

    def _is_running(self) -> bool:
        return self._server.is_running()


class LocalWorker(_Process, CeleryWorkerContainer):
    """A worker process, with the files that pytest-celery would have put into the volume."""

    def __init__(
        self,
        directory: Path,
        content: dict[str, bytes],
        command: list[str],
        environment: dict[str, str],
    ) -> None:
        super().__init__(self.worker_name())
        _write(directory, content)
        path = ":".join(map(str, [directory, ROOT]))
        program, *arguments = command
        assert program == "celery", f"only celery can run without Docker: {command}"
        # In a container the host name is the beginning of the container's id, and the node relies on
        # that.
        arguments = [argument.replace("%h", self.id[:12]) for argument in arguments]
        self.process = WorkerProcess(
            directory, arguments, {**environment, "PYTHONPATH": path}, name=self.name
        )
        self._is_ready = False

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        return super().command(*FAST, *args, **kwargs)

    def start(self) -> None:
        self._is_ready = False
        self.process.start()

    def ready(self) -> bool:
        super().ready()
        if not self._is_ready:
            self.process.wait_ready()
            self._is_ready = True
        return True

    def logs(self) -> str:
        return self.process.log()

    def kill(self, signal: str | int | None = None) -> None:
        if _number(signal) == _number("SIGKILL"):
            self.process.kill_tree()
        else:
            psutil.Process(self.process.pid).send_signal(_number(signal))

    def restart(self, timeout: int = 10) -> None:
        """Stop with SIGTERM, or with SIGKILL after the timeout, and start again, like ``docker
        restart``.
        """
        if self._is_running():
            self.process.term()
            try:
                self.process.wait_exit(timeout)
            except AssertionError:
                self.process.kill_tree()
        self.start()
        self.ready()

    def teardown(self) -> None:
        self.process.close()

    def _is_running(self) -> bool:
        return self.process.is_running()


class LocalWorkerNode(CeleryTestWorker):
    """A worker node whose processes are those of its session, not all processes of the machine."""

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        found = [psutil.Process(pid).as_dict(columns) for pid in self.container.process.tree()]
        return [one for one in found if (filters or {}).items() <= one.items()]


def _write(directory: Path, content: dict[str, bytes]) -> None:
    for name, text in content.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)


def _number(name: str | int | None) -> signal.Signals:
    """Return the number of a signal that Docker accepts: a name, a number, or nothing for SIGKILL."""
    if name is None:
        return signal.SIGKILL
    return signal.Signals[name] if isinstance(name, str) else signal.Signals(name)
