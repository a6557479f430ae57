from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_ckpt import CheckpointStore, open_store


@pytest.fixture(params=["memory", "file", "sqlite", "redis"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """An empty store of each kind, which knows nothing of keys."""
    urls = {
        "memory": lambda: "memory://",
        "file": lambda: f"file://{tmp_path}/store",
        "sqlite": lambda: f"sqlite:///{tmp_path}/store.db",
        "redis": lambda: request.getfixturevalue("redis_url"),
    }
    with open_store(urls[request.param]()) as store:
        yield store
