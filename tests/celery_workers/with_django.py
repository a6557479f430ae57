"""The app of the tests in a Django project."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "celery_workers.django_settings")
django.setup()

from celery_workers.app import app  # noqa: E402

__all__ = ["app"]
