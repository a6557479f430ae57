"""How the records of old runs go in Redis: part by part, so that no script keeps others waiting."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from celery_ckpt.errors import StoreError
from celery_ckpt.retention.report import PrunePlan
from celery_ckpt.stores.redis.reading import RedisReading
from celery_ckpt.stores.redis.server import Call

logger = logging.getLogger(__name__)

#: Where the first part of a scan begins, see ``run_forget.lua``.
_START = (b"0", b"0", b"")


class Forgotten(NamedTuple):
    """What went of an agent's runs."""

    runs: int = 0
    bytes: int = 0


def not_pruned(plan: PrunePlan, error: StoreError) -> None:
    """Somebody spoilt a key of an agent. A sweep goes on with the others; who named it is told."""
    if plan.due_at is None:
        raise error
    logger.error("Agent %r is not pruned: %s", plan.snapshot.agent_id, error)


class RedisOldRuns(RedisReading):
    """The part of the store that forgets runs."""

    def _forget_runs(self, plans: Sequence[PrunePlan]) -> dict[str, Forgotten]:
        """Do what the verdicts say of runs; of many agents side by side."""
        gone: dict[str, Forgotten] = {}
        left = {plan.snapshot.agent_id: (plan, _START) for plan in plans}
        while left:
            replies = self._server.each(*(self._part(*one) for one in left.values()))
            for (name, (plan, _)), reply in zip(list(left.items()), replies, strict=True):
                if isinstance(reply, StoreError):
                    not_pruned(plan, reply)
                    del left[name]
                    continue
                is_all, runs, size, *place = reply
                before = gone.get(name, Forgotten())
                gone[name] = Forgotten(before.runs + runs, before.bytes + size)
                left[name] = plan, (place[0], place[1], place[2])
                if is_all:
                    del left[name]
        return gone

    def _part(self, plan: PrunePlan, place: tuple[bytes, bytes, bytes]) -> Call:
        snapshot = plan.snapshot
        keys = self._keys.of(snapshot.agent_id, "agent", "steps", "stepidx", "runs")
        before = "" if plan.runs_before is None else _text(plan.runs_before)
        policy = snapshot.policy.to_bytes()
        return Call.script("run_forget", keys, snapshot.agent_id, policy, before, *place)


def parsed_end(told: bytes) -> datetime | None:
    """Parse ``oldest_end`` of ``agent_snapshot.lua``. A time that is not known is before all others."""
    if not told:
        return None
    try:
        return datetime.fromisoformat(told.decode()).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _text(due_at: datetime) -> str:
    # Without the Z, so that the order of texts is that of moments, with a fraction or without.
    return due_at.astimezone(UTC).replace(tzinfo=None).isoformat()
