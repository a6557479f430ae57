"""The app of the workers, in a Django project."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.workers.django_settings")
django.setup()

from tests.support.workers.app import app  # noqa: E402

__all__ = ["app"]
