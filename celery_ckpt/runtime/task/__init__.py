"""What users write and send: ``@agent_task``, ``AgentTask``, its options and hooks.

A message is published only after its run is on record (``admission``). A body that is called
directly runs without a store (``local``). Nothing here decides what becomes of a delivery: that is
``attempt``.
"""

from __future__ import annotations
