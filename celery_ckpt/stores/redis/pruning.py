"""What a sweep sees and does, in Redis: for many agents in one round trip."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from celery_ckpt.errors import SchemaTooNew, StoreDamaged, StoreError
from celery_ckpt.json_values import decode
from celery_ckpt.names import checked_name
from celery_ckpt.records import RunStatus
from celery_ckpt.retention.report import (
    AgentPolicy,
    AgentSnapshot,
    CheckpointSummary,
    PrunePlan,
    PruneResult,
    RunSummary,
)
from celery_ckpt.stores.log.marks import UNKNOWN, marks
from celery_ckpt.stores.redis.keys import FIELD, shown
from celery_ckpt.stores.redis.old_runs import RedisOldRuns, not_pruned, parsed_end
from celery_ckpt.stores.redis.reading import LONG, id_of
from celery_ckpt.stores.redis.server import Call

_FIELD = FIELD.encode()
T = TypeVar("T")
#: How many agents are looked at, and dropped from, in one round trip. A server runs all that it has
#: read of one client, up to 16 KB, before it turns to the next: twenty looks are 2 ms. A removal names
#: what goes, so that fewer are read at once.
_LOOKS, _DROPS = 20, 100
#: More bytes than that of one agent are looked at in parts: to read them takes a millisecond or two.
_HEAVY = 500_000
#: What is left to do after a removal, see ``checkpoint_remove.lua``.
DONE, AGAIN, TRIM, CHANGED = range(4)


class RedisSweeps(RedisOldRuns):
    """The part of the store that tidies up."""

    def policy(self, agent_id: str) -> AgentPolicy:
        """See ``CheckpointStore``."""
        [key] = self._keys.of(checked_name(agent_id), "agent")
        return self._parsed_policy(agent_id, self._server.command("HGET", key, "notes") or b"")

    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        """See ``CheckpointStore``."""
        keys = self._keys.of(checked_name(agent_id), "agent")
        set_policy = Call.script("agent_set_policy", keys, before.to_bytes(), after.to_bytes())
        listing = self._index.listing(agent_id)
        # Once more behind it: a sweep may have been done with the agent just before.
        [_, is_set, _] = self._server.together(listing, set_policy, listing)
        return bool(is_set)

    def _parsed_policy(self, agent_id: str, stored: bytes) -> AgentPolicy:
        try:
            return AgentPolicy.from_bytes(stored)
        except ValueError as error:
            where = f"{self._server.where}, notes of agent {agent_id!r}"
            raise StoreDamaged(where=where, reason=str(error)) from error

    # -- seeing --------------------------------------------------------------------------------------

    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        """See ``CheckpointStore``."""
        return [snapshot for page in _pages(agent_ids, _LOOKS) for snapshot in self._sights(page)]

    def _sights(self, page: Sequence[str]) -> Iterator[AgentSnapshot]:
        calls = [
            Call.script(
                "agent_snapshot", self._keys.of(name, "agent", "runs", "open"), name, LONG, _HEAVY
            )
            for name in page
        ]
        return map(self._sight, page, self._server.each(*calls))

    def _sight(self, agent_id: str, reply: builtins.list[Any] | StoreError) -> AgentSnapshot:
        if isinstance(reply, StoreError):
            return AgentSnapshot(agent_id, seen="?", damage=str(reply))
        if not reply:
            return AgentSnapshot(agent_id)
        seen, told, busy, named, run, end, first, seq, is_long, cut, flat = reply
        if is_long:
            cut, flat = self._outlines(agent_id)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        lines = {shown(field[2:]): line for field, line in pairs if field[:2] == _FIELD}
        try:
            policy = self._parsed_policy(agent_id, told)
            found = _resized(marks(agent_id, lines.items(), policy), cut)
            last, oldest_end = _last_run(run), parsed_end(end)
            text, places = seen.decode(), (int(first), int(seq))
        except (ValueError, TypeError, AttributeError, StoreDamaged, SchemaTooNew) as error:
            return AgentSnapshot(agent_id, seen="?", damage=str(error))
        facts = bool(busy), bool(named), last, oldest_end, *places
        return AgentSnapshot(agent_id, text, found, policy, *facts)

    def _outlines(self, agent_id: str) -> tuple[builtins.list[Any], builtins.list[Any]]:
        """Read what ``agent_snapshot.lua`` leaves out of a long history."""
        keys, cut, flat = self._keys.of(agent_id, "agent"), builtins.list[Any](), builtins.list[Any]()
        cursor = None
        while cursor != b"0":
            cursor, *part = self._server.run("checkpoint_scan", keys, cursor or 0)
            cut += part[0]
            flat += part[1]
        return cut, flat

    # -- doing ---------------------------------------------------------------------------------------

    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        """See ``CheckpointStore``."""
        pruned: dict[str, PruneResult] = {}
        # First, with the notes that were seen: what goes with a checkpoint may change them.
        old_runs = self._forget_runs([v for v in plans if v.runs_before and _is_anything(v)])
        replies = self._drop([v for v in plans if _is_anything(v)])
        moves: builtins.list[tuple[str, int, float | None]] = []
        for plan in plans:
            name = plan.snapshot.agent_id
            pruned[name], is_done = self._done(plan, replies.get(name))
            if plan.due_at is not None and not pruned[name].forgotten:
                moves.append((name, plan.due_at, plan.again if is_done else plan.retry))
        for name, (runs, size) in old_runs.items():
            pruned[name] = pruned[name]._replace(runs=runs, bytes=pruned[name].bytes + size)
        self._index.remove_all([one.agent_id for one in pruned.values() if one.forgotten])
        for one in pruned.values():
            self._index.unregister(one.agent_id, builtins.list(one.ids))
        self._move(moves)
        return [pruned[plan.snapshot.agent_id] for plan in plans]

    def _drop(self, plans: Sequence[PrunePlan]) -> dict[str, Any]:
        """What the scripts answered, by agent."""
        replies: dict[str, Any] = {}
        for page in _pages(plans, _DROPS):
            names = (plan.snapshot.agent_id for plan in page)
            answers = self._server.each(*map(self._doing, page))
            replies.update(zip(names, answers, strict=True))
        return replies

    def _doing(self, plan: PrunePlan) -> Call:
        snapshot, going = plan.snapshot, _first_part(plan)
        gone = set(going)
        if plan.forget:
            return Call.script("agent_delete", self._keys.all_of(snapshot.agent_id), snapshot.seen, 1)
        staying = [mark for mark in snapshot.marks if mark.id not in gone]
        newest = FIELD + staying[0].id if staying else ""
        low = min((mark.low for mark in staying), default=0)
        told = snapshot.policy.to_bytes(), snapshot.policy.without(gone).to_bytes()
        keys = self._keys.of(snapshot.agent_id, "agent", "log", "open")
        fields = (FIELD + name for name in going)
        return Call.script(
            "checkpoint_remove", keys, snapshot.seq, low, newest, *told, snapshot.seen, *fields
        )

    def _done(self, plan: PrunePlan, reply: Any) -> tuple[PruneResult, bool]:
        """What went, and whether that was all."""
        name = plan.snapshot.agent_id
        if reply is None:
            return PruneResult(name), True
        if isinstance(reply, StoreError):
            not_pruned(plan, reply)
            return PruneResult(name), False
        if plan.forget:
            if not reply:
                return PruneResult(name), False
            ids = tuple(mark.id for mark in plan.snapshot.marks)
            return PruneResult(name, len(ids), reply[0], forgotten=True, ids=ids), True
        count, trimmed, left = reply
        ids = tuple(_first_part(plan)) if count else ()
        while left == TRIM:
            trimmed_more, left = self._trim_on(plan)
            trimmed += trimmed_more
        # Who has a thousand checkpoints to lose loses the others at the next look.
        is_done = left == DONE and len(plan.drop) <= LONG
        gone = set(ids)
        size = sum(mark.size for mark in plan.snapshot.marks if mark.id in gone)
        return PruneResult(name, count, size + trimmed, ids=ids), is_done

    def _trim_on(self, plan: PrunePlan) -> tuple[int, int]:
        """Trim the next part of a long log."""
        snapshot = replace(plan.snapshot, policy=plan.snapshot.policy.without(_first_part(plan)))
        call = self._doing(PrunePlan(snapshot, drop=plan.drop))
        [(_, trimmed, left)] = self._server.side_by_side(call)
        return trimmed, left


def _pages(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _first_part(plan: PrunePlan) -> builtins.list[str]:
    """What goes at once: the oldest, no more than one script drops without keeping others waiting."""
    return plan.drop[-LONG:]


def _is_anything(plan: PrunePlan) -> bool:
    return bool(plan.snapshot.seen) and not plan.snapshot.damage


def _resized(
    found: builtins.list[CheckpointSummary], cut: builtins.list[Any]
) -> builtins.list[CheckpointSummary]:
    """The same, with the sizes of the records that were cut short."""
    if not cut:
        return found
    sizes = dict(zip(map(id_of, cut[::2]), cut[1::2], strict=True))
    return [mark._replace(size=sizes.get(mark.id, mark.size)) for mark in found]


def _last_run(facts: builtins.list[bytes]) -> RunSummary | None:
    if not facts:
        return None
    run_id, status, delivered, ending = facts
    fields = decode(ending)
    texts = (fields.get("created_at"), fields.get("ended_at"))
    created_at, ended_at = (datetime.fromisoformat(text) if text else None for text in texts)
    state = RunStatus(status.decode())
    is_settled = state.is_final and delivered == b"1"
    limits = fields.get("keep"), fields.get("max_age")
    return RunSummary(run_id.decode(), state, is_settled, created_at or UNKNOWN, ended_at, *limits)
