"""The store in an SQLite file, for several processes on one machine.

``store`` decides what is saved and read, ``transaction`` is one agent inside a transaction,
``database`` is the connection. All SQL is in ``schema.sql`` and ``queries.sql``. Imports the rules and
the log, and no other store.
"""

from __future__ import annotations

from celery_ckpt.stores.sqlite.store import SqliteCheckpointStore

__all__ = ["SqliteCheckpointStore"]
