"""``python -m benchmarks``: compares the stores with bare commands, a naive store and other libraries.

It may import everything; nothing imports it. A budget is a ratio of two measurements that alternate in
one loop, so that it means the same on any machine. A budget that is exceeded is reported, not raised.
"""

from __future__ import annotations
