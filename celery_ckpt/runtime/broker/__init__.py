"""Messages on the wire: the envelope of a run, publishing it, and messages not yet acknowledged.

An envelope holds everything that is needed to publish a run again from any process, also one without
the code of its task. This package does not use a store. It imports ``current`` and what is below.
"""

from __future__ import annotations
