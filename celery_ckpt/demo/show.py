"""The show: a server and both sides, from the first worker to the second answer.

Signals do not break in anywhere: they are noted, and looked at between two steps. So whatever was
started is known, and ended, before the folder with its files goes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from click import ClickException

from celery_ckpt.demo.server import Server
from celery_ckpt.demo.sides import DURABLE, PLAIN, Side
from celery_ckpt.demo.stop import Stopped

#: Half of it is plenty on two busy cores.
DEADLINE_SECONDS = 90.0
_LOOK_EVERY = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def show(look: Callable[[list[Side]], None], check: Callable[[], None]) -> list[Side]:
    """Let it all happen, and let somebody look at it many times a second; ``check`` may end it.

    Raises:
        Stopped: by a signal.
        ClickException: something went wrong; nothing is left behind in either case.
    """
    with _folder() as folder, ExitStack() as running:
        server = Server(folder)
        running.callback(server.process.kill)
        _wait_for(server, check)
        sides = _both_sides(server.url, folder)
        for side in sides:
            running.callback(side.close)
        for _ in _moments(check):
            _check(server)
            for side in sides:
                side.advance()
            look(sides)
            if all(side.story.is_over for side in sides):
                return sides
    raise ClickException(f"The demo did not finish within {DEADLINE_SECONDS:.0f} seconds.")


@contextmanager
def _folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="celery-ckpt-demo-") as name:
        yield Path(name)


def _both_sides(server_url: str, folder: Path) -> list[Side]:
    """Two sides that begin together."""
    sides: list[Side] = []

    def are_ready() -> bool:
        return all(side.is_ready() for side in sides)

    sides += [Side(kind, server_url, folder, are_ready) for kind in (DURABLE, PLAIN)]
    return sides


@contextmanager
def signals_noted() -> Iterator[Callable[[], None]]:
    """Gives what raises ``Stopped`` once a signal has come."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    def check() -> None:
        if noted:
            raise Stopped(noted[0])

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield check
    finally:
        # Once one has come, others may until the process is gone; they must not break into its end.
        if not noted:
            for number, handler in before.items():
                signal.signal(number, handler)


def _moments(check: Callable[[], None]) -> Iterator[None]:
    """One after the other, until a signal comes or the deadline."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        check()
        yield
        time.sleep(_LOOK_EVERY)


def _wait_for(server: Server, check: Callable[[], None]) -> None:
    for _ in _moments(check):
        _check(server)
        if server.is_ready():
            return


def _check(server: Server) -> None:
    if not server.process.is_running():
        raise ClickException(f"Valkey exited unexpectedly:\n{server.process.log().strip()}")
