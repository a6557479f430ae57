from __future__ import annotations

from tests.support.workers.fixtures import *  # noqa: F403
from tests.support.workers.site import *  # noqa: F403
