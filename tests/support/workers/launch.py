"""Two ways to start a worker: run the ``celery`` command, or fork a process that has its imports.

In both cases the worker has a session of its own, writes to a log file, and dies with the tests.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tests.support.wait import until

ROOT = Path(__file__).resolve().parents[3]
_PR_SET_PDEATHSIG = 1
#: Replaces itself with a worker that dies with its parent. (A preexec_fn is unsafe with threads.)
_LAUNCHER = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
if os.getppid() != int(sys.argv[1]):
    sys.exit("the tests ended before the worker began")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class CeleryCommand:
    """A command to run. ``arguments`` follow the word ``celery`` on the command line."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    log: Path

    @property
    def command(self) -> list[str]:
        # Not "python -m celery": on SIGHUP Celery executes its argv[0], which only the script allows.
        return [str(Path(sys.executable).with_name("celery")), *self.arguments]

    @property
    def full_environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": _PATH, "PYTHONUNBUFFERED": "1", **self.environment}


_PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


class Started(Protocol):
    """A process that was started: a ``Popen``, or an object with these of its methods."""

    pid: int
    returncode: int | Any

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...

    def send_signal(self, number: int) -> None: ...


def execute(celery: CeleryCommand) -> Started:
    """Run the command."""
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), sys.executable]
    with celery.log.open("ab") as log:
        return subprocess.Popen(
            [*launcher, *celery.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=celery.directory,
            env=celery.full_environment,
            start_new_session=True,
        )


def fork(celery: CeleryCommand) -> Started:
    """Fork the worker from the fork server of this process."""
    return _ForkServer.of_this_process().fork(celery)


class _ForkServer:
    """The client of ``fork_server.py``."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "tests.support.workers.fork_server", str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _PATH, "PYTHONUNBUFFERED": "1"},
            # Ctrl-C must reach only the tests, which end the workers.
            start_new_session=True,
        )
        self._owner = os.getpid()
        atexit.register(self._end)

    @classmethod
    @cache
    def of_this_process(cls) -> _ForkServer:
        return cls()

    def fork(self, celery: CeleryCommand) -> _Forked:
        asked = {
            "command": celery.command,
            "environment": celery.full_environment,
            "directory": str(celery.directory),
            "log": str(celery.log),
        }
        return _Forked(self, self.ask(asked))

    def ask(self, asked: dict[str, Any]) -> Any:
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


class _Forked:
    """A worker that is a child of the fork server, with the interface of ``Popen``."""

    def __init__(self, server: _ForkServer, pid: int) -> None:
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
