"""The store on Redis and Valkey.

``store.py`` has ``RedisCheckpointStore``, which delegates to sibling parts: leases, steps, runs,
checkpoints, schedule, pruning, rewrite, doctor. A part knows the server, the keys and the index.
``lua/`` has one script a file; ``lua/shared.lua`` describes the hash of an agent.

The package imports redis-py, ``stores.log`` and the vocabulary of the library, no other store.

What must stay true: one call changes one agent in one script, so it is atomic. What is in other slots
(index entries, due times) is written before the data that needs it, and removed after it.
"""

from __future__ import annotations

from celery_ckpt.stores.redis.store import RedisCheckpointStore

__all__ = ["RedisCheckpointStore"]
