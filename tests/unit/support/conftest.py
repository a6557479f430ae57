from __future__ import annotations

from tests.support.workers.fixtures import *  # noqa: F403
