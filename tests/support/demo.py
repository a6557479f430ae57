"""Run the demo as a user does, and check what it leaves behind."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from tests.support.wait import until

ROOT = Path(__file__).parents[2]
DEMO = ("-m", "celery_ckpt.demo")
#: Seconds, on two cores that other tests use as well.
DEADLINE = 60.0
_GONE_DEADLINE = 10.0


class Demo:
    """A demo that runs, with a folder for its temporary files; ``columns`` gives it a terminal."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        columns: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder / "tmp"
        self._folder.mkdir()
        self._output, self._is_read = b"", True
        ours, theirs = pty.openpty() if columns else os.pipe()
        # As in a terminal, the process is the leader of its own group.
        self.process = subprocess.Popen(
            [sys.executable, *(arguments or DEMO)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=self._environment(columns, variables or {}),
            start_new_session=True,
        )
        os.close(theirs)
        self._ours = ours
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _environment(self, columns: int | None, variables: Mapping[str, str]) -> dict[str, str]:
        size = {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"} if columns else {}
        own = {
            "TMPDIR": str(self._folder),
            "PYTHONPATH": str(ROOT),
            "PYTHONUTF8": "1",
        }
        return {**os.environ, **own, **size, **variables}

    def _read(self) -> None:
        # Reading from a terminal whose other end is closed is an error.
        with suppress(OSError):
            while self._is_read and (some := os.read(self._ours, 65536)):
                self._output += some
        os.close(self._ours)

    @property
    def output(self) -> str:
        """All that it has printed."""
        return self._output.decode(errors="replace")

    def wait_for(self, text: str) -> Self:
        """Wait until it has printed that."""
        until(
            lambda: text in self.output or self._is_over(text), DEADLINE, f"{text!r} in {self.output}"
        )
        return self

    def _is_over(self, text: str) -> bool:
        assert self.process.poll() is None, f"it ended without {text!r}:\n{self.output}"
        return False

    def wait(self) -> int:
        """Wait until it has ended; return its exit status."""
        status = self.process.wait(240)
        self._reader.join(240)
        return status

    def interrupt(self) -> None:
        """Send SIGINT to the whole group, as Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def hang_up(self) -> None:
        """Stop reading what it prints."""
        self._is_read = False

    def processes(self) -> list[psutil.Process]:
        """Return the processes that it has started: they run in its folder, even if it is deleted."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        # Not found by their environment, because Valkey overwrites it with its title.
        try:
            is_dead = process.status() == psutil.STATUS_ZOMBIE
            return not is_dead and process.cwd().startswith(str(self._folder))
        except psutil.Error:
            return False

    def started(self, word: str) -> psutil.Process:
        """Wait for a process that it has started, and find it by a word of its command line."""
        return until(lambda: self._found(word), DEADLINE, f"a process with {word}")

    def _found(self, word: str) -> psutil.Process | None:
        found = [process for process in self.processes() if word in " ".join(process.cmdline())]
        return min(found, key=lambda process: process.pid, default=None)

    def wait_until_gone(self) -> None:
        """Wait until all its processes have ended."""
        until(lambda: not self.processes(), _GONE_DEADLINE, "all its processes have ended")

    def assert_nothing_left(self) -> None:
        """Assert that no process and no file is left."""
        self.wait_until_gone()
        assert list(self._folder.iterdir()) == []

    def close(self) -> None:
        """Kill every process that is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        self.process.kill()
        self.process.wait()


StartDemo = Callable[..., Demo]
