"""A store reports that other users may write to its files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_ckpt import CheckpointStore, open_store
from celery_ckpt.testing import make_checkpoint


@pytest.fixture(params=["store.db", "root"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A database file, and the root of a file store."""
    return tmp_path / request.param


@pytest.fixture
def store(path: Path) -> Iterator[CheckpointStore]:
    mask = os.umask(0)
    with open_store(f"sqlite:///{path}" if path.suffix else f"file://{path}") as store:
        store.save(make_checkpoint("agent"))
        yield store
    os.umask(mask)


def test_files_created_by_a_store_are_not_a_risk(store: CheckpointStore, path: Path) -> None:
    assert path.exists()
    assert store.risks() == []


@pytest.mark.parametrize(
    ("bits", "who", "remedy"),
    [
        (0o022, "every user and its group", "chmod o-w,g-w"),
        (0o002, "every user", "chmod o-w"),
        (0o020, "its group", "chmod g-w"),
    ],
)
def test_files_that_others_can_write_are_a_risk(
    store: CheckpointStore, path: Path, bits: int, who: str, remedy: str
) -> None:
    path.chmod(path.stat().st_mode | bits)
    [risk] = store.risks()
    assert f"{path} is writable by {who} (mode " in risk
    assert remedy in risk


def test_files_that_others_can_only_read_are_not_a_risk(store: CheckpointStore, path: Path) -> None:
    path.chmod(0o755)
    assert store.risks() == []


def test_a_store_without_files_has_no_permission_risk(tmp_path: Path) -> None:
    with open_store("sqlite://") as in_memory, open_store(f"file://{tmp_path}/none") as empty:
        assert in_memory.risks() == empty.risks() == []
