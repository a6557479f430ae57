"""What a signal asks for: the end of the demo, in one line and with the code that shells expect."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

_STANDARD_ERROR = 2


class Stopped(Exception):
    """A signal asked for the end; what it says is for the person who sent it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"Stopped by {signal.Signals(number).name}. Nothing is left behind.")
        self.code = 128 + number


def stop_at_once_on_ctrl_c() -> None:
    """Let Ctrl-C end the process, as long as it has started nothing that would have to be ended."""
    # Where it is ignored, as in the background of a shell script, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    # Not by an exception: some imports catch all of them.
    stopped = Stopped(number)
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(_STANDARD_ERROR, f"{stopped}\n".encode())
    os._exit(stopped.code)
