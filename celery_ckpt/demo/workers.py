"""A Celery worker of one side: it starts, is killed or told to stop, and says when it is ready."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from click import ClickException

from celery_ckpt.demo import ledger
from celery_ckpt.demo.processes import Process

#: They are ready in a third of the time without these, and are all alone anyway.
_FAST = ("--without-gossip", "--without-mingle", "--without-heartbeat")
#: Celery logs this when it takes messages.
_READY = " ready."
_TOLD = 1500


class Worker:
    """One of the workers of an app, with one process in its pool."""

    def __init__(self, app: str, number: int, folder: Path, variables: Mapping[str, str]) -> None:
        self.number = number
        self._name = f"worker {number} of {app}"
        celery = [sys.executable, "-m", "celery", "-A", app, "worker", "--concurrency", "1"]
        options = ["--hostname", f"{number}@%h", "--prefetch-multiplier", "1", "--loglevel", "INFO"]
        told = {**variables, ledger.WORKER: str(number)}
        log = f"{app}-{number}.log"
        self.process = Process([*celery, *options, *_FAST], folder, log, told)
        self._is_to_end = False

    def is_ready(self) -> bool:
        """Does it take messages?"""
        return any(line.endswith(_READY) for line in self.process.log().splitlines())

    def kill(self) -> None:
        """End it as a lost machine would."""
        self._is_to_end = True
        self.process.kill()

    def stop(self) -> None:
        """Tell it to stop, as a deploy does."""
        self._is_to_end = True
        self.process.terminate()

    def check(self) -> None:
        """Raise ``ClickException`` if it has ended without having been told to."""
        if not self.process.is_running() and not self._is_to_end:
            log = self.process.log()[-_TOLD:].strip()
            raise ClickException(f"{self._name} exited unexpectedly. The end of its log:\n{log}")
