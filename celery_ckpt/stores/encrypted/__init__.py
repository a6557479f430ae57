"""Encryption at rest: a store around another one, which then holds only encrypted content.

This package imports ``cryptography`` when a store with keys is opened, and never otherwise. What stays
readable is listed in ``docs/howto/encrypt.md``. Every encrypted value is bound to its place, so that it
cannot be moved, exchanged or omitted without being detected.
"""

from __future__ import annotations

from celery_ckpt.stores.encrypted.store import EncryptedStore

__all__ = ["EncryptedStore"]
