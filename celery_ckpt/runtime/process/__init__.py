"""What one process has once: stores, lease renewer, background thread, event loop, drain flag.

Everything here survives a fork: a child process makes its own threads and connections when it first
needs them. This package imports ``broker``, ``current``, settings and signals. It does not know how an
attempt works.
"""

from __future__ import annotations
