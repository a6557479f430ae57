"""The code of a page as a project in its own directory, with a real server and real workers."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT, Page
from tests.support.servers.valkey import DEADLINE, LOOPBACK, Valkey, free_port, wait_until

#: Commands of the pages, as modules of the Python that runs the tests.
_MODULES = {"celery": "celery", "uvicorn": "uvicorn", "django-admin": "django", "python": None}
_QUICK = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
_SERVER, _SERVICE = "localhost:6379", "8000"
#: Python 3.12.0 to 3.12.3 treat a numbered placeholder of SQLite as a name.
_FIRST_312 = ("-W", "ignore:Binding:DeprecationWarning")


@dataclass(frozen=True)
class Running:
    """A command that runs in the background."""

    process: subprocess.Popen[bytes]
    path: Path

    @property
    def log(self) -> str:
        return self.path.read_text()

    def wait_for_end(self) -> None:
        """Wait until it has ended, on its own or because of the test."""
        self.process.wait(2 * DEADLINE)

    def end(self) -> None:
        """End it and all processes that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Project:
    """A directory with the files of a page. Its commands run as they are written on the page."""

    def __init__(self, page: Page, directory: Path, server: Valkey) -> None:
        self.page, self.directory = page, directory
        self._server, self._service = f"{LOOPBACK}:{server.port}", str(free_port())
        with server.client() as client:
            client.flushall()
        page.write_files(directory)
        for path in directory.rglob("*.py"):
            path.write_text(self.here(path.read_text()))

    def here(self, text: str) -> str:
        """Return a text of the page with the addresses of the test."""
        return text.replace(_SERVER, self._server).replace(_SERVICE, self._service)

    def run(self, *arguments: str) -> str:
        """Run Python code to its end. Return its output."""
        finished = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert finished.returncode == 0, f"{self.page.name}:\n{finished.stdout}{finished.stderr}"
        return finished.stdout

    def run_program(self) -> str:
        """Run the page's program together with the commands that it needs. Warnings are errors."""
        program = self.directory / "program.py"
        program.write_text(self.here(self.page.program), encoding="utf-8")
        with ExitStack() as running:
            for command in self.page.commands("before"):
                self.run(*self._arguments(command))
            others = [running.enter_context(self.beside(own)) for own in self.page.commands("beside")]
            try:
                return self.run("-W", "error", *_FIRST_312, program.name)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                error.add_note("\n".join(other.log for other in others))
                raise

    @contextmanager
    def beside(self, command: str) -> Iterator[Running]:
        """Run a command of the page in the background, inside the block."""
        path = self.directory / f"{len(list(self.directory.glob('*.log')))}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *self._arguments(command)],
                cwd=self.directory,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = Running(process, path)
        try:
            if command.startswith("uvicorn"):
                wait_until("the service answers", self._service_answers)
            yield running
        finally:
            running.end()

    @property
    def _environment(self) -> dict[str, str]:
        # The root for celery_ckpt, and the directory for the modules that the page calls tasks or proj.
        path = os.pathsep.join([str(ROOT), str(self.directory)])
        return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}

    def _arguments(self, command: str) -> list[str]:
        name, *rest = shlex.split(self.here(command))
        module = _MODULES[name]
        quick = _QUICK if name == "celery" and "worker" in rest else []
        return [*(["-m", module] if module else []), *rest, *quick]

    def _service_answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, int(self._service))) == 0
