"""An app that is configured as in Django: settings in capitals, with a namespace."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

from celery import Celery

import tests.support.tasks.agents

assert tests.support.tasks.agents.nothing

_SETTINGS = {
    "CELERY_BROKER_URL": os.environ["CKPT_TEST_BROKER_URL"],
    "CELERY_RESULT_BACKEND": os.environ["CKPT_TEST_BACKEND_URL"],
    "CELERY_CKPT_STORE_URL": os.environ["CKPT_TEST_STORE_URL"],
    **json.loads(os.environ.get("CKPT_TEST_NAMESPACED", "{}")),
}
app = Celery("namespaced")
app.config_from_object(SimpleNamespace(**_SETTINGS), namespace="CELERY")
app.set_current()
