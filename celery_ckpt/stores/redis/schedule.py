"""When the watchdog, or a sweep, looks at an agent: due times by the server's clock.

Due times are in other slots than the agents' data. A due time for an agent that has nothing to do is
harmless; a missing one means a run that is never requeued. So a due time is written before the data
that needs it, and removed only if it is still the one that was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from celery_ckpt.names import checked_name
from celery_ckpt.records import Schedule
from celery_ckpt.stores.redis.keys import Keys, agent_named
from celery_ckpt.stores.redis.server import Call, Server


class DueTimes:
    """The schedules of the watchdog and of sweeps."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self._server, self._keys = server, keys

    def add(self, agent_id: str, after: float, on: Schedule) -> int:
        """See ``CheckpointStore.schedule``."""
        [due_at] = self._server.together(*self.addition(checked_name(agent_id), after, on))
        return int(due_at)

    def addition(
        self, agent_id: str, after: float | None, on: Schedule = Schedule.WATCHDOG
    ) -> list[Call]:
        """Return the call that schedules the agent, or none. Send it before the agent's data."""
        if after is None:
            return []
        key = self._keys.due_times_of(agent_id, on)
        return [Call.script("schedule_add", [key], agent_id, round(after * 1_000_000))]

    def remove(self, due_times: Mapping[str, int], on: Schedule) -> int:
        """Unschedule agents that still have these due times. Return how many had them."""
        parts: dict[bytes, list[str | int]] = {}
        for agent_id, due_at in due_times.items():
            key = self._keys.due_times_of(checked_name(agent_id), on)
            parts.setdefault(key, []).extend((agent_id, due_at))
        calls = [Call.script("schedule_remove", [key], *pairs) for key, pairs in parts.items()]
        return sum(self._server.side_by_side(*calls))

    def claim(self, limit: int, hold: float, on: Schedule) -> list[tuple[str, int]]:
        """Return due agents with their new due times, ``hold`` seconds from now."""
        found: list[tuple[str, int]] = []
        keys = self._keys.due_times(on)
        put_off, share = round(hold * 1_000_000), -(-limit // len(keys))

        def claim(*shards: bytes) -> Call:
            return Call.script("schedule_claim", shards, share, put_off)

        for flat in self._server.whole_or_parts(claim(*keys), [claim(key) for key in keys]):
            pairs = zip(map(agent_named, flat[::2]), flat[1::2], strict=True)
            # An entry that cannot be the name of an agent is skipped: it must not block the others.
            found += [(name, int(at)) for name, at in pairs if name is not None]
        return found

    def count(self, on: Schedule) -> int:
        """Return how many agents are due."""
        calls = [Call.script("schedule_count", [key]) for key in self._keys.due_times(on)]
        return sum(self._server.side_by_side(*calls))

    def move(self, moves: Iterable[tuple[str, int, float | None]], on: Schedule) -> dict[str, int]:
        """Reschedule agents, or unschedule them, if they still have the given due times.

        Return the new due times of the agents that were rescheduled.
        """
        shards: dict[bytes, list[tuple[str, int, float | None]]] = {}
        for move in moves:
            shards.setdefault(self._keys.due_times_of(move[0], on), []).append(move)
        if not shards:
            return {}
        parts = [_move({key: of_shard}) for key, of_shard in shards.items()]
        replies = chain(*self._server.whole_or_parts(_move(shards), parts))
        moved = zip(chain(*shards.values()), replies, strict=True)
        return {agent_id: int(due_at) for (agent_id, _, _), due_at in moved if due_at}

    def count_watchdogs(self, name: str, seconds: float) -> int:
        """See ``CheckpointStore.count_watchdogs``."""
        key = self._keys.watchdogs
        return int(self._server.run("watchdog_count", [key], name, round(seconds * 1_000_000)))


def _move(shards: Mapping[bytes, list[tuple[str, int, float | None]]]) -> Call:
    args: list[str | int] = []
    for shard, moves in enumerate(shards.values(), 1):
        for agent_id, due_at, after in moves:
            put_off = "" if after is None else round(after * 1_000_000)
            args += (shard, agent_id, due_at, put_off)
    return Call.script("schedule_move", list(shards), *args)
