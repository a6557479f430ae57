"""The store in an SQLite file."""

from __future__ import annotations

from celery_ckpt.stores.sqlite.store import SqliteCheckpointStore

__all__ = ["SqliteCheckpointStore"]
