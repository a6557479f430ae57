"""Keys, and stores that are encrypted with them."""

from __future__ import annotations

import base64
import copy

from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encrypted import EncryptedStore


def key(number: int, name: str = "") -> str:
    """Return a key as it is written in settings, always the same for the same number."""
    text = base64.b64encode(bytes([number]) * 32).decode()
    return f"{name}:{text}" if name else text


OLD, NEW, OTHER = key(1, "old"), key(2, "new"), key(3, "other")


def encrypted(store: CheckpointStore, *keys: str) -> EncryptedStore:
    return EncryptedStore(store, keys or (OLD,))


def keyless(store: CheckpointStore) -> CheckpointStore:
    """Return another store on the same data, as a process without keys has it."""
    other = copy.copy(store)
    other.reads_encrypted = False
    return other
