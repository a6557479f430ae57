"""``celery -A proj ckpt ...``: agents from a terminal.

Celery loads this for each of its own commands, a worker's start too: so nothing is imported here but
the group, and it imports a command when it is asked for.
"""

from __future__ import annotations

from celery_ckpt.cli.main import ckpt

__all__ = ["ckpt"]
