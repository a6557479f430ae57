"""The store in a directory of files, for several processes on one machine.

``directory`` finds and locks the directories of agents, ``journal`` has the checkpoints,
``record_table`` the runs and steps, ``schedule`` the due times. ``transaction`` is one agent inside
a transaction and states the order of writes, which makes every crash harmless. Imports the rules
and the log, and no other store.
"""

from __future__ import annotations

from celery_ckpt.stores.file.store import FileCheckpointStore

__all__ = ["FileCheckpointStore"]
