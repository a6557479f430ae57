"""``Agents``: acting on agents from outside a worker, from a web view or the CLI.

Listing, resuming, cancelling, forking, pruning, deleting and rekeying. Everything goes through the
store and the broker; no worker has to be alive.
"""

from __future__ import annotations

from celery_ckpt.runtime.agents.agents import Agents, AgentStatus, RekeyedAgent

__all__ = ["AgentStatus", "Agents", "RekeyedAgent"]
