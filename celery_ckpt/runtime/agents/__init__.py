"""``Agents``: inspecting and controlling agents from outside a worker, from a web view or the CLI.

It lists, resumes, cancels, forks, prunes, deletes and rekeys agents. Everything is done through the
store and the broker; no worker has to be alive. This package imports every other part of the runtime
except ``task``.
"""

from __future__ import annotations

from celery_ckpt.runtime.agents.agents import AgentList, Agents, AgentStatus, RekeyedAgent

__all__ = ["AgentList", "AgentStatus", "Agents", "RekeyedAgent"]
