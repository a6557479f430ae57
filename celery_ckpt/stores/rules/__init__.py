"""The rules of the stores that decide in Python: leases, turns, pruning.

The memory, file and SQLite stores decide here, inside a transaction on one agent
(``AgentTransaction``). Redis decides in Lua, by the same rules. The contract in
``celery_ckpt.testing`` checks both.

The rules know records, errors and retention. They know no store, no file and no clock: the time is
a parameter.
"""

from __future__ import annotations
