"""The app of the worker processes: ``celery -A celery_workers.app worker``."""

from __future__ import annotations

import faulthandler

from celery_workers.configuration import STACKS, Configuration

# Of all its processes, also of one that hangs.
faulthandler.register(STACKS)
app = Configuration.from_environment().make_app()
