"""The runs whose agents were deleted while their messages could arrive: a key for each, which expires.

A marker is in another slot than its agent, so it cannot be written in the same atomic step. It is
written before the agent is deleted. A marker of a run that has a record is harmless: it is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_ckpt.names import digest_of_run
from celery_ckpt.stores.redis.keys import Keys, agent_named
from celery_ckpt.stores.redis.server import Call, Server


class Markers:
    """Writes and reads the markers of deleted runs."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self._server, self._keys = server, keys

    def mark_runs(self, agent_id: str, seconds: float, marked: set[str]) -> bytes:
        """Mark the agent's runs that need it, except the ``marked`` ones; add them to ``marked``.

        Returns:
            What ``agent_delete.lua`` compares: it changes when a run is added or opened again.
        """
        keys = self._keys.of(agent_id, "agent", "runs")
        state, cursor = None, b"0"
        while state is None or cursor != b"0":
            now, cursor, *ids = self._server.run("run_scan", keys, cursor)
            # The state before the first part: what changes in between is then noticed.
            state = now if state is None else state
            self._mark([name for name in map(agent_named, ids) if name], seconds, marked)
        return bytes(state)

    def _mark(self, run_ids: Sequence[str], seconds: float, marked: set[str]) -> None:
        new = [run_id for run_id in run_ids if run_id not in marked]
        milliseconds = max(1, round(seconds * 1000))
        calls = (
            Call.command("SET", self._keys.marker(digest_of_run(run_id)), "", "PX", milliseconds)
            for run_id in new
        )
        self._server.side_by_side(*calls)
        marked.update(new)

    def has(self, run_id: str) -> bool:
        """See ``CheckpointStore.was_deleted``."""
        return bool(self._server.command("EXISTS", self._keys.marker(digest_of_run(run_id))))
