"""Run an example as its README says: its workers, programs and server are real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import httpx

from tests.support.forks import ROOT
from tests.support.servers.valkey import LAUNCHER, LOOPBACK, free_port
from tests.support.wait import until
from tests.support.workers.processes import FAST, Pool, WorkerProcess

EXAMPLES = ROOT / "examples"
#: Seconds. Many processes start at the same time, and each imports a lot.
DEADLINE = 60.0


class Program:
    """A running Python program of an example."""

    def __init__(self, directory: Path, environment: Mapping[str, str], *arguments: str) -> None:
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, sys.executable]
        self._process = subprocess.Popen(
            [*launcher, *arguments],
            cwd=directory,
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def output(self) -> list[str]:
        """Wait until it has ended; return the lines that it printed."""
        output, errors = self._process.communicate(timeout=240)
        assert self._process.returncode == 0, errors
        return output.splitlines()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.is_running():
            self._process.kill()
        self._process.communicate()


class Example:
    """One directory below ``examples``."""

    def __init__(self, name: str, app: str, environment: Mapping[str, str], scratch: Path) -> None:
        self.directory, self._app, self._scratch = EXAMPLES / name, app, scratch
        self._environment = {
            **environment,
            "PYTHONPATH": os.pathsep.join(map(str, [self.directory, ROOT])),
        }
        self._running = ExitStack()
        self._workers: list[WorkerProcess] = []

    def set(self, **variables: str) -> None:
        """Add variables to the environment."""
        self._environment.update(variables)

    def start_workers(self, pool: Pool = "prefork", concurrency: int = 1) -> None:
        """Start ``celery -A APP worker`` twice, without waiting until they are ready."""
        for name in ("worker1", "worker2"):
            arguments = ["-A", self._app, "worker", "-n", f"{name}@%h", "-l", "INFO", *FAST]
            arguments += ["-P", pool, "-c", str(concurrency)]
            worker = WorkerProcess(self._scratch, arguments, self._environment, name=name)
            self._running.callback(worker.close)
            self._workers.append(worker.start())

    def working(self) -> WorkerProcess:
        """Wait for the worker that has received a task. The other one takes over, once it is ready."""

        def busy() -> WorkerProcess | None:
            return next((worker for worker in self._workers if " received" in worker.log()), None)

        worker = until(busy, DEADLINE, "a worker has something to do")
        assert worker is not None
        return worker

    def start(self, *arguments: str) -> Program:
        """Start ``python ARGUMENTS`` in the directory of the example."""
        program = Program(self.directory, self._environment, *arguments)
        self._running.callback(program.close)
        return program

    def serve(self, *arguments: str) -> httpx.Client:
        """Start a server with ``python ARGUMENTS``, and return a client once it answers."""
        port = free_port()
        server = self.start(*(argument.format(port=port) for argument in arguments))
        client = httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=DEADLINE, trust_env=False)
        self._running.callback(client.close)
        until(lambda: self._answers(server, client), DEADLINE, "the server answers")
        return client

    def _answers(self, server: Program, client: httpx.Client) -> bool:
        assert server.is_running(), server.output()
        try:
            return client.get("/").status_code == httpx.codes.NOT_FOUND
        except httpx.TransportError:
            return False

    def close(self) -> None:
        """End all its processes."""
        self._running.close()


class OpenExample(Protocol):
    """Return the example in that directory. Its processes end with the test."""

    def __call__(self, name: str, app: str) -> Example: ...
