"""What a write waits for, in the stores that have a disk or no durability at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from celery_ckpt import Checkpoint, Conversation, open_store
from celery_ckpt.errors import ConfigurationError

NORMAL, FULL = 1, 2


@pytest.mark.parametrize(("durability", "level"), [("default", NORMAL), ("fsync", FULL)])
def test_sqlite_syncs_each_transaction_if_configured(
    tmp_path: Path, durability: str, level: int
) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db", durability=durability) as store:
        store.save(Checkpoint.new("agent", Conversation(), 1))
        [(found,)] = store._database._connected().execute("PRAGMA synchronous")
    assert found == level


def test_a_file_store_syncs_with_every_durability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(real(descriptor)))
    for durability in ("default", "fsync"):
        synced.clear()
        with open_store(f"file://{tmp_path}/{durability}", durability=durability) as store:
            store.save(Checkpoint.new("agent", Conversation(), 1))
        assert synced


@pytest.mark.parametrize(
    ("url", "durability", "message"),
    [
        (
            "memory://",
            "fsync",
            "memory:// store cannot have durability = 'fsync'. It can have: default.",
        ),
        ("memory://", "replica", "It can have: default."),
        ("file:///tmp/nowhere", "replica", "It can have: default, fsync."),
        ("sqlite:///nowhere.db", "replica", "It can have: default, fsync."),
        ("redis://localhost", "disk", "It can have: default, fsync, replica."),
    ],
)
def test_a_store_refuses_a_durability_it_cannot_provide(
    url: str, durability: str, message: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_store(url, durability=durability)
    assert message in str(refused.value)
