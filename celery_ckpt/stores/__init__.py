"""The stores, and how to open one by its URL."""

from __future__ import annotations

from celery_ckpt.stores.registry import open_store

__all__ = ["open_store"]
