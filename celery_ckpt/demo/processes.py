"""A process that ends with the demo, whatever becomes of it.

It leads a session of its own: Ctrl-C at the terminal reaches the demo alone, which then ends it, and
a kill reaches all that it has started. On Linux it dies with the demo even if that is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
#: Becomes the program, having asked to die with its parent. (A preexec_fn is unsafe beside threads.)
_LAUNCHER = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
if os.getppid() != int(sys.argv[1]):
    sys.exit("the demo ended before this began")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Process:
    """A program that runs, with its output in a file."""

    def __init__(
        self, program: Sequence[str], folder: Path, log: str, variables: Mapping[str, str]
    ) -> None:
        self._log = folder / log
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*launcher, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**_environment(folder), **variables},
                start_new_session=True,
            )

    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text(errors="replace")

    def is_running(self) -> bool:
        """Has its main process not ended?"""
        return self._process.poll() is None

    def terminate(self) -> None:
        """SIGTERM to its main process, as a process manager sends it."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to it and to all that it has started, as when a machine is lost."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _environment(folder: Path) -> dict[str, str]:
    """This one's, with the way to this package; a process that is killed leaves its files behind."""
    here = str(Path(__file__).parents[2])
    paths = filter(None, [here, os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)}
    return {**os.environ, **own}
