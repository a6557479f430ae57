"""The stores, and how to open one by its URL.

A store knows neither Celery nor another store. ``registry`` maps URLs to stores, ``wrapper`` and
``encrypted`` are stores around another one, and every other folder is one kind of store. What stores
share: ``rules`` (decisions about leases, turns and pruning), ``transactional`` (stores that apply them
in transactions), ``log`` (the format of checkpoints),
``encoding`` (the format of steps and runs) and ``encryption_tag`` (the refusal of encrypted data).
"""

from __future__ import annotations

from celery_ckpt.stores.registry import open_store, register_store

__all__ = ["open_store", "register_store"]
