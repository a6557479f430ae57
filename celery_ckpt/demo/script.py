"""The entry points.

Importing what the demo needs takes a second or two. Ctrl-C during that time would print a traceback
from some import, or click's "Aborted!", so this module sets a handler before it imports the command.
Nothing has been started by then, and nothing has to be cleaned up. Once the show begins, it has its own
handlers.
"""

from __future__ import annotations

from celery_ckpt.demo.stop import stop_at_once_on_ctrl_c


def main() -> None:
    """Run ``celery-ckpt``."""
    stop_at_once_on_ctrl_c()
    from celery_ckpt.demo.command import main

    main()


def demo() -> None:
    """Run ``python -m celery_ckpt.demo``."""
    stop_at_once_on_ctrl_c()
    from celery_ckpt.demo.command import demo

    demo()
