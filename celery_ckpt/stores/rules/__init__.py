"""The rules of the stores that decide in Python: leases, turns, pruning.

Redis decides in Lua; memory, file and SQLite decide here, inside one of their transactions. Each
rule is a pure function of records and a time. The contract in ``celery_ckpt.testing`` holds both
sides to the same behaviour.
"""

from __future__ import annotations
