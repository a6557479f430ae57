"""Everything in this process: for tests, and the reference model of the contract."""

from __future__ import annotations

from celery_ckpt.stores.memory.store import MemoryCheckpointStore

__all__ = ["MemoryCheckpointStore"]
