"""A support desk: its settings, its URLs, and its Celery app, which is loaded along with Django."""

from __future__ import annotations

from desk.celery import app as celery_app

__all__ = ["celery_app"]
