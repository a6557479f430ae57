"""``celery -A proj ckpt ...``: inspect and control agents from a terminal.

``main`` is the group of commands. ``commands`` has a module for each command or small family of
commands, ``options`` what several commands take, ``errors`` the exit codes, ``output`` what prints.

Celery imports this package for each of its own commands, including the start of a worker. Therefore
it imports only ``main``, which imports a command when it is called. It may import everything except
``demo`` and ``testing``; nothing imports it. Commands, options, exit codes and JSON output are public.
"""

from __future__ import annotations

from celery_ckpt.cli.main import ckpt

__all__ = ["ckpt"]
