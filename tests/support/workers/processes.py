"""A Celery worker as a real process, and what can happen to one.

It runs in a session of its own, writes its log to a file, and dies with the tests, even if they
crash. Shutdown signals are sent to the main process, as a process manager does. Kills and freezes
reach the whole tree, as when a machine fails or a container is paused.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psutil

from tests.support.ledger import Ledger
from tests.support.wait import until
from tests.support.workers.configuration import STACKS
from tests.support.workers.launch import CeleryCommand, Started, execute, fork

Pool = Literal["prefork", "threads", "solo", "gevent"]

APP = "tests.support.workers.app"
#: Without these features, which the tests do not need, a worker starts in a third of the time.
FAST = ("--without-gossip", "--without-mingle", "--without-heartbeat")
#: Celery logs this once per start.
READY = " ready."
START_DEADLINE = 30.0
_KILL_DEADLINE = 60.0


class WorkerProcess:
    """A process that can be started again after its end, with the same arguments and log.

    ``arguments`` follow the word ``celery`` on the command line. ``forked`` saves the time that the
    command spends on imports (see ``forks.py``).
    """

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        name: str,
        ledger: Ledger | None = None,
        forked: bool = False,
    ) -> None:
        self.name, self._ledger = name, ledger
        self._log = directory / f"{name}.log"
        self._log.touch()
        self._celery = CeleryCommand(tuple(arguments), environment, directory, self._log)
        self._launch = fork if forked else execute
        self._process: Started | None = None
        self._ready_seen, self._awaits_ready = 0, False

    # Start and end

    def start(self) -> Self:
        """Start it without waiting, so that several can start at the same time."""
        assert not self.is_running(), f"worker {self.name} is already running"
        self._ready_seen, self._awaits_ready = self._ready_count(), True
        self._process = self._launch(self._celery)
        return self

    @property
    def awaits_ready(self) -> bool:
        """True if it was started and ``wait_ready`` was not called."""
        return self._awaits_ready

    def wait_ready(self, deadline: float = START_DEADLINE) -> Self:
        """Wait until it has logged once more than before that it is ready."""
        until(self._has_become_ready, deadline, f"worker {self.name} is ready")
        self._ready_seen, self._awaits_ready = self._ready_seen + 1, False
        return self

    def _has_become_ready(self) -> bool:
        is_running = self.is_running()
        if self._ready_count() > self._ready_seen:
            return True
        assert is_running, f"worker {self.name} exited before it was ready:\n{self.log()}"
        return False

    def _ready_count(self) -> int:
        return sum(line.endswith(READY) for line in self.log().splitlines())

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_exit(self, deadline: float) -> int:
        """Wait until the main process has exited; return its exit status."""
        until(lambda: not self.is_running(), deadline, f"worker {self.name} exits")
        return self._started.returncode

    def close(self) -> None:
        """Kill it and all its processes."""
        if self._process is not None:
            self._kill(self.tree())

    def __enter__(self) -> Self:
        return self.start().wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"log of {self.name}:\n{self.log()}")
        self.close()

    # Its processes and log

    @property
    def _started(self) -> Started:
        assert self._process is not None, f"worker {self.name} was never started"
        return self._process

    @property
    def pid(self) -> int:
        """The process id of the main process."""
        return self._started.pid

    def children(self) -> list[int]:
        """Return the living processes of the pool; empty for pools that run in the main process."""
        try:
            children = [child.pid for child in psutil.Process(self.pid).children()]
        except psutil.NoSuchProcess:
            return []
        # A killed process stays a child until the main process has waited for it.
        return [pid for pid in children if _is_alive(pid)]

    def tree(self) -> list[int]:
        """Return all processes of its session: the main one, its children, and orphans."""
        return [pid for pid in psutil.pids() if _session(pid) == self.pid and _is_alive(pid)]

    def log(self) -> str:
        """Return everything that it has logged, since its first start."""
        return self._log.read_text(errors="replace")

    def dump_stacks(self) -> None:
        """Make each process log the stacks of all its threads, even if it hangs."""
        for pid in self.tree():
            mark = self._log.stat().st_size
            os.kill(pid, STACKS)
            until(
                lambda mark=mark: self._log.stat().st_size > mark,
                _KILL_DEADLINE,
                f"{pid} logs its stacks",
            )

    # What happens to it

    def term(self) -> None:
        """Send SIGTERM: the warm shutdown of Celery, which waits for the tasks."""
        self._started.send_signal(signal.SIGTERM)

    def quit(self) -> None:
        """Send SIGQUIT: the cold shutdown of Celery."""
        self._started.send_signal(signal.SIGQUIT)

    def int_(self) -> None:
        """Send SIGINT, as Ctrl-C does: a warm shutdown the first time, a cold one the second time."""
        self._started.send_signal(signal.SIGINT)

    def hup(self) -> None:
        """Send SIGHUP: a warm shutdown, after which it executes itself again; ``wait_ready`` waits."""
        self._started.send_signal(signal.SIGHUP)

    def kill_tree(self) -> None:
        """Kill all its processes with SIGKILL, as when a machine fails; return when they are dead."""
        pids = self.tree()
        if self._ledger:
            self._ledger.killed(*pids)
        self._kill(pids)

    def _kill(self, pids: Sequence[int]) -> None:
        self._signal_tree(signal.SIGKILL, pids)
        self._started.wait(_KILL_DEADLINE)
        until(lambda: not any(map(_is_alive, pids)), _KILL_DEADLINE, f"worker {self.name} is dead")

    def kill_child(self, pid: int) -> None:
        """Kill one process of the pool, as when memory is short; return when it is dead."""
        assert pid in self.children(), f"{pid} is not a child of worker {self.name}: {self.children()}"
        if self._ledger:
            self._ledger.killed(pid)
        os.kill(pid, signal.SIGKILL)
        until(
            lambda: not _is_alive(pid), _KILL_DEADLINE, f"process {pid} of worker {self.name} is dead"
        )

    def freeze(self) -> None:
        """Stop all its processes, as when a machine is paused; return when all are stopped."""
        pids = self.tree()
        self._signal_tree(signal.SIGSTOP, pids)
        until(lambda: all(map(_is_stopped, pids)), _KILL_DEADLINE, f"worker {self.name} is frozen")
        if self._ledger:
            self._ledger.frozen(*pids)

    def thaw(self) -> None:
        """Let all its processes continue."""
        pids = self.tree()
        if self._ledger:
            self._ledger.thawed(*pids)
        self._signal_tree(signal.SIGCONT, pids)

    def fill_disk(self) -> None:
        """Make every write of its processes to a file fail, even to the log."""
        self._limit_files(0)

    def make_room(self) -> None:
        """Let its processes write to files again."""
        self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size: int) -> None:
        for pid in self.tree():
            with suppress(ProcessLookupError):
                _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))

    def _signal_tree(self, number: int, pids: Sequence[int]) -> None:
        # The group has processes that were forked after the list was made, and the list has processes
        # that have left the group.
        for send, target in [(os.killpg, self.pid), *((os.kill, pid) for pid in pids)]:
            try:
                send(target, number)
            except ProcessLookupError:
                continue


class Worker(WorkerProcess):
    """A ``celery worker`` of an app of the tests, named ``name@host``."""

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        *,
        ledger: Ledger | None = None,
        app: str = APP,
        pool: Pool = "prefork",
        concurrency: int = 1,
        name: str = "worker",
        options: Sequence[str] = FAST,
        forked: bool = True,
    ) -> None:
        worker = ["-A", app, "worker", "-n", f"{name}@%h", "-l", "INFO", *options]
        arguments = [*worker, "-P", pool, "-c", str(concurrency)]
        # gevent must patch modules before they are imported.
        forked = forked and pool != "gevent"
        super().__init__(directory, arguments, environment, name=name, ledger=ledger, forked=forked)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _status(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD


def _is_alive(pid: int) -> bool:
    return _status(pid) not in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)


def _is_stopped(pid: int) -> bool:
    return _status(pid) == psutil.STATUS_STOPPED or not _is_alive(pid)
