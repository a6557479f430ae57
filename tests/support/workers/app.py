"""The app of the worker processes: ``celery -A tests.support.workers.app worker``."""

from __future__ import annotations

import faulthandler

from tests.support.workers.configuration import STACKS, Configuration

# Works in all processes of the worker, also in one that hangs.
faulthandler.register(STACKS)
app = Configuration.from_environment().make_app()
