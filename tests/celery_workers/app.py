"""The app of the worker processes: ``celery -A celery_workers.app worker``."""

from __future__ import annotations

from celery_workers.configuration import Configuration

app = Configuration.from_environment().make_app()
