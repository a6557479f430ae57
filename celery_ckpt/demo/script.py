"""``celery-ckpt`` from its first moment: what it needs takes a second or two to be imported.

Ctrl-C meanwhile would print the traceback of some import, or click's "Aborted!". Nothing has been
started by then, so nothing has to be cleaned up. Once the show begins, it has handlers of its own.
"""

from __future__ import annotations

from celery_ckpt.demo.stop import stop_at_once_on_ctrl_c


def main() -> None:
    """The console script."""
    stop_at_once_on_ctrl_c()
    from celery_ckpt.demo.command import main

    main()


def demo() -> None:
    """``python -m celery_ckpt.demo``."""
    stop_at_once_on_ctrl_c()
    from celery_ckpt.demo.command import demo

    demo()
