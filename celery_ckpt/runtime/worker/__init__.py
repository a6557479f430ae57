"""What runs in a worker's parent process: the bootstep, the watchdog, and what it notices of children.

The watchdog requeues the runs of dead workers. It decides by leases only, never by a worker's own
clock, and any number of watchdogs may work on the same store.
"""

from __future__ import annotations
