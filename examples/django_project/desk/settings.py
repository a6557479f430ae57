"""The minimal settings of a project. The settings for agents are at the end."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only-for-trying-it-out")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "desk.urls"
INSTALLED_APPS = ["support"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DJANGO_DATABASE", BASE_DIR / "desk.sqlite3"),
    }
}

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")
CELERY_BROKER_URL = f"{REDIS}/0"
CELERY_RESULT_BACKEND = f"{REDIS}/0"

# Every ckpt_* setting works like this: in capitals, with the namespace as a prefix.
CELERY_CKPT_STORE_URL = f"{REDIS}/1"
CELERY_CKPT_STRATEGY = "every:1"
CELERY_CKPT_LEASE_TTL = 3  # seconds until a dead worker is noticed; the default is 30
CELERY_CKPT_KEEP = 10

OPENAI_MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
