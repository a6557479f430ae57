"""Agents out of a store into lines of text, and from there into any store.

See docs/reference/cli.md for the format. It does not need Celery.
"""

from __future__ import annotations

from celery_ckpt.transfer.exporter import export_agents
from celery_ckpt.transfer.importer import Imported, import_agents

__all__ = ["Imported", "export_agents", "import_agents"]
