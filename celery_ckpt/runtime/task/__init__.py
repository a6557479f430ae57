"""What users write and send: ``@agent_task``, ``AgentTask``, its options and hooks.

A message is published only after its run is on record (``admission``). A body that is called directly
runs without a store (``local``). How a delivery becomes an outcome is decided in ``attempt``. This
package imports ``install``, ``attempt`` and what is below.
"""

from __future__ import annotations
