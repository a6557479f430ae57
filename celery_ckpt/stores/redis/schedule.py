"""When a watchdog, or a sweep, should look at which agent, in Redis."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping

from celery_ckpt.names import checked_name
from celery_ckpt.records import Schedule
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import Keys, agent_named
from celery_ckpt.stores.redis.server import Call, Server


class RedisMoments(CheckpointStore):
    """The part of the store that knows who is due."""

    _keys: Keys
    _server: Server
    _index: AgentIndex

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        [due_at] = self._server.together(*self._watching(checked_name(agent_id), after, on))
        return int(due_at)

    def _watching(
        self, agent_id: str, after: float | None, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[Call]:
        """What to send first: a moment for nothing is harmless, a missing one is a lost run."""
        if after is None:
            return []
        put_off = round(after * 1_000_000)
        return [Call.script("schedule_add", [self._keys.moments_of(agent_id, on)], agent_id, put_off)]

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        parts: dict[bytes, builtins.list[str | int]] = {}
        for agent_id, due_at in due_times.items():
            key = self._keys.moments_of(checked_name(agent_id), on)
            parts.setdefault(key, []).extend((agent_id, due_at))
        calls = [Call.script("schedule_remove", [key], *pairs) for key, pairs in parts.items()]
        return sum(self._server.side_by_side(*calls))

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        """See ``CheckpointStore``."""
        found: builtins.list[tuple[str, int]] = []
        keys = self._keys.moments(on)
        put_off, share = round(hold * 1_000_000), -(-limit // len(keys))
        calls = [Call.script("schedule_claim", [key], share, put_off) for key in keys]
        for flat in self._server.side_by_side(*calls):
            pairs = zip(map(agent_named, flat[::2]), flat[1::2], strict=True)
            # Who has a name that nobody can have is passed over: others are not to wait for him.
            found += [(name, int(at)) for name, at in pairs if name is not None]
        return found

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        """See ``CheckpointStore``."""
        keys = self._keys.moments(on)
        return sum(self._server.side_by_side(*(Call.script("schedule_count", [key]) for key in keys)))

    def _move(self, moves: Iterable[tuple[str, int, float | None]]) -> None:
        """Give agents other moments for a sweep, or none, if they have the ones given here."""
        parts: dict[bytes, builtins.list[str | int]] = {}
        for agent_id, due_at, after in moves:
            key = self._keys.moments_of(agent_id, Schedule.SWEEP)
            put_off = "" if after is None else round(after * 1_000_000)
            parts.setdefault(key, []).extend((agent_id, due_at, put_off))
        self._server.side_by_side(
            *(Call.script("schedule_move", [key], *args) for key, args in parts.items())
        )
