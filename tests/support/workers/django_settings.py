"""The settings of a Django project that only keeps the schedule of beat."""

from __future__ import annotations

import os

SECRET_KEY = "tests"
USE_TZ = True
INSTALLED_APPS = ["django_celery_beat"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("CKPT_TEST_DJANGO_DB")}
}
