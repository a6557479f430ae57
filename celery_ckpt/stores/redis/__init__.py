"""The store on Redis and Valkey."""

from __future__ import annotations

from celery_ckpt.stores.redis.store import RedisCheckpointStore

__all__ = ["RedisCheckpointStore"]
