"""How a signal ends the demo: with one line, and with the exit code that shells expect.

This module is imported first, so it imports nothing large.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

_STANDARD_ERROR = 2


class Stopped(Exception):
    """A signal ended the demo. ``code`` is the exit code that shells expect."""

    def __init__(self, number: int) -> None:
        super().__init__(f"Stopped by {signal.Signals(number).name}. Nothing is left behind.")
        self.code = 128 + number


def stop_at_once_on_ctrl_c() -> None:
    """Let Ctrl-C end the process without cleaning up: nothing has been started yet."""
    # A signal that is ignored, as in the background of a shell script, stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    # Not an exception: some imports catch all exceptions.
    stopped = Stopped(number)
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(_STANDARD_ERROR, f"{stopped}\n".encode())
    os._exit(stopped.code)
