"""Two ways to start a worker: run the ``celery`` command, or fork a process that has its imports.

In both cases the worker has a session of its own, writes to a log file, and dies with the tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.support.forks import PATH, ForkServer
from tests.support.workers import forked

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
        return {**os.environ, "PYTHONPATH": PATH, "PYTHONUNBUFFERED": "1", **self.environment}


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
    return ForkServer.with_imports(*forked.IMPORTED).fork(
        forked.MAIN,
        celery.command,
        celery.full_environment,
        directory=celery.directory,
        files=[os.devnull, str(celery.log), str(celery.log)],
    )
