"""The page of shared memory from which spawned children learn that their worker is shutting down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from celery_ckpt.runtime.process.drain import Drain

MEMORY = Path("/dev/shm")
#: A worker that is killed together with the processes that it started, which would otherwise remove the
#: page.
KILLED = """
import os, signal
from celery_ckpt.runtime.process.drain import drain
drain.share()
print(os.environ["CELERY_CKPT_DRAIN"], flush=True)
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture
def killed() -> str:
    """Return the name of the page that a killed worker has left behind."""
    command = [sys.executable, "-c", KILLED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)
    name = ended.stdout.strip()
    assert name, ended.stderr
    assert (MEMORY / name).exists()
    return name


def test_a_worker_that_starts_removes_the_pages_of_killed_workers(
    killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CELERY_CKPT_DRAIN", raising=False)
    one, other = Drain(), Drain()
    one.share()
    other.share()
    try:
        left = {path.name for path in MEMORY.iterdir()}
        assert killed not in left
        assert one.name in left
        assert other.name in left
    finally:
        one.unshare()
        monkeypatch.setenv("CELERY_CKPT_DRAIN", other.name)
        other.unshare()
    assert not {one.name, other.name} & {path.name for path in MEMORY.iterdir()}
