"""Export of agents from a store into lines of text, and import of such lines into any store.

``format`` makes and checks single lines, ``exporter`` turns agents into lines, ``sections`` turns lines
into agents, and ``importer`` writes those into a store. Nothing of an agent is imported before all its
lines were checked. The format is documented in docs/reference/cli.md. This package does not use Celery.
"""

from __future__ import annotations

from celery_ckpt.transfer.exporter import export_agents
from celery_ckpt.transfer.importer import Imported, import_agents

__all__ = ["Imported", "export_agents", "import_agents"]
