"""What runs in a worker's parent process: the bootstep, the watchdog, and what the parent records.

The watchdog requeues the runs of dead workers. It decides by leases, never by a worker's own clock, and
any number of watchdogs may work on the same store. This package imports ``attempt`` and what is below.
"""

from __future__ import annotations
