from __future__ import annotations

from celery_workers.fixtures import *  # noqa: F403
