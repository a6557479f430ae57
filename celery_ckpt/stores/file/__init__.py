"""The store in a directory of files."""

from __future__ import annotations

from celery_ckpt.stores.file.store import FileCheckpointStore

__all__ = ["FileCheckpointStore"]
