"""The body's side of a run: what the code of an agent calls, and what it needs to resume.

``AgentRun`` is what a body receives. It records and replays calls (``calls``, ``replay``, ``steps``),
keeps its place in the loop (``position``, ``iterations``) and asks its host (``host``) to save.

This package imports the vocabulary and the store's records. It imports neither Celery nor a store, so
that a body can run under any host: a worker, a test, a plain call. Everything here works the same
for ``def`` and ``async def`` bodies; ``bridge`` is the only place that knows the difference.
"""

from __future__ import annotations

from celery_ckpt.run.agent_run import AgentRun

__all__ = ["AgentRun"]
