"""What one process has once: stores, lease renewer, background thread, event loop, drain flag.

Everything here survives a fork: a child builds its own threads and connections when it first needs
them. It imports ``broker``, settings and signals, and knows no attempt.
"""

from __future__ import annotations
