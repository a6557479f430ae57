from __future__ import annotations

from celery_workers.fixtures import *  # noqa: F403
from celery_workers.standing import *  # noqa: F403
