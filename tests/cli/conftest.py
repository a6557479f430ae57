from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_ckpt import CheckpointStore, MemoryCheckpointStore, open_store
from tests.support.cli import Commands, Process, commands_for, with_entry_points
from tests.support.workers.fixtures import *  # noqa: F403
from tests.support.workers.site import *  # noqa: F403


@pytest.fixture
def store() -> MemoryCheckpointStore:
    return MemoryCheckpointStore()


@pytest.fixture
def commands(store: MemoryCheckpointStore) -> Commands:
    """Return commands on a store in memory."""
    return commands_for(store)


@pytest.fixture(params=["memory", "file", "sqlite", "redis"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """Return an empty store, one of each kind."""
    urls = {
        "memory": "memory://",
        "file": f"file://{tmp_path}/files",
        "sqlite": f"sqlite:///{tmp_path}/store.db",
    }
    url = urls.get(request.param) or request.getfixturevalue("redis_url")
    with open_store(url) as store:
        yield store


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """Return ``celery ckpt`` as a process, with an app whose store is a file."""
    url = f"sqlite:///{tmp_path}/store.db"
    (tmp_path / "proj.py").write_text(
        "from celery import Celery\n"
        "app = Celery('proj', broker='memory://', backend='cache+memory://')\n"
        f"app.conf.ckpt_store_url = {url!r}\n"
    )
    return Process(with_entry_points(tmp_path), app="proj")


@pytest.fixture
def process_store(process: Process, tmp_path: Path) -> Iterator[CheckpointStore]:
    """Return the store that ``process`` uses."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield store
