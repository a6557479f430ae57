"""A support desk: settings, URLs, and the Celery app, which is loaded with Django."""

from __future__ import annotations

from desk.celery import app as celery_app

__all__ = ["celery_app"]
