"""Encryption at rest: a store around any other, in which that one keeps only what it needs to know."""

from __future__ import annotations

from celery_ckpt.stores.encrypted.store import EncryptedStore
from celery_ckpt.stores.encrypted.unsealed import UnsealedStore

__all__ = ["EncryptedStore", "UnsealedStore"]
