"""Programs that are forked from a process that has their imports: the client of ``fork_server.py``.

They die with the tests, and each has a session of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.wait import until

ROOT = Path(__file__).resolve().parents[2]
#: The ``PYTHONPATH`` of the server.
PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


class ForkServer:
    """A process that has imported ``modules``. They must not start threads, which a fork would lose."""

    def __init__(self, modules: Sequence[str]) -> None:
        command = [sys.executable, "-P", "-m", "tests.support.fork_server", str(os.getpid())]
        self._process = subprocess.Popen(
            [*command, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PATH, "PYTHONUNBUFFERED": "1"},
            # Ctrl-C must reach only the tests, which end the programs.
            start_new_session=True,
        )
        self._owner = os.getpid()
        atexit.register(self._end)

    @classmethod
    @cache
    def with_imports(cls, *modules: str) -> ForkServer:
        """Return the server of this process with these imports."""
        return cls(modules)

    def fork(
        self,
        main: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        directory: Path,
        files: Sequence[str],
    ) -> Forked:
        """Fork a program.

        Args:
            main: the function to call, as ``module:function``.
            command: what it finds in ``sys.argv``.
            environment: its environment variables, with ``PYTHONPATH``.
            directory: its working directory.
            files: the paths of its standard input, output and error output, which must exist.
        """
        asked = {
            "main": main,
            "command": list(command),
            "environment": dict(environment),
            "directory": str(directory),
            "files": list(files),
        }
        return Forked(self, self.ask(asked))

    def ask(self, asked: dict[str, Any]) -> Any:
        """Send a request, and return the reply."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the fork server has exited with status {self._process.wait()}"
        return json.loads(answer)

    def _end(self) -> None:
        if os.getpid() == self._owner:
            self._process.communicate()


class Forked:
    """A program that is a child of the fork server, with the interface of ``Popen``."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid, self.returncode, self._server = pid, None, server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"pid": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        until(lambda: self.poll() is not None, timeout, f"process {self.pid} ends")
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
