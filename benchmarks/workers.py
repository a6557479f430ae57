"""Celery workers as processes, for benchmarks that need them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

_ROOT = Path(__file__).resolve().parent.parent
_FLAGS = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
URL = "CKPT_BENCH_URL"
_DEADLINE = 30.0


class Worker:
    """A worker of the app in ``agents``, in its own process group."""

    def __init__(self, name: str, concurrency: int, log: Path, pool: str = "prefork") -> None:
        program = [str(Path(sys.executable).with_name("celery")), "-A", "benchmarks.agents", "worker"]
        options = ["--pool", pool, "--concurrency", str(concurrency)]
        options += ["--hostname", f"{name}@%h", *_FLAGS]
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*program, *options], cwd=_ROOT, stdout=file, stderr=file, start_new_session=True
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        end = monotonic() + _DEADLINE
        while " ready." not in self._log.read_text(errors="replace"):
            if monotonic() > end or self._process.poll() is not None:
                raise RuntimeError(f"a worker did not start:\n{self._log.read_text()[-2000:]}")
            sleep(0.02)

    def kill_tree(self) -> None:
        """Kill the worker and its children, as if the machine were lost."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Kill the worker if it is still running."""
        if self._process.poll() is None:
            self.kill_tree()


@contextmanager
def workers(directory: Path, *concurrency: int, pool: str = "prefork") -> Iterator[list[Worker]]:
    """Start workers with these numbers of slots. They read the server URL from the environment."""
    started: list[Worker] = []
    try:
        for number, slots in enumerate(concurrency):
            log = directory / f"worker{number}.log"
            started.append(Worker(f"bench{number}", slots, log, pool))
        yield started
    finally:
        for worker in started:
            worker.stop()
