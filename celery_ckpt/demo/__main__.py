"""The entry points: ``celery-ckpt`` and ``python -m celery_ckpt.demo``.

Importing what the demo needs takes a second or two. Ctrl-C during that time would print a traceback
from some import, or click's "Aborted!", so this module sets a handler before it imports the command,
and itself imports nothing large. Nothing has been started by then, and nothing has to be cleaned up.
Once the show begins, it has its own handlers.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from celery_ckpt.demo import Stopped

_STANDARD_ERROR = 2


def main() -> None:
    """Run ``celery-ckpt``."""
    _stop_at_once_on_ctrl_c()
    from celery_ckpt.demo.command import main

    main()


def demo() -> None:
    """Run ``python -m celery_ckpt.demo``."""
    _stop_at_once_on_ctrl_c()
    from celery_ckpt.demo.command import demo

    demo()


def _stop_at_once_on_ctrl_c() -> None:
    """Let Ctrl-C end the process with one line, without cleaning up."""
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


if __name__ == "__main__":
    demo()
