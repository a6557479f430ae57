"""The app of the worker processes: ``celery -A tests.support.workers.app worker``."""

from __future__ import annotations

import faulthandler

from tests.support.workers.configuration import STACKS, Configuration

# Of all its processes, also of one that hangs.
faulthandler.register(STACKS)
app = Configuration.from_environment().make_app()
