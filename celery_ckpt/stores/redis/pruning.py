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
from celery_ckpt.retention.report import LastRun, Mark, Notes, Pruned, Sight, Verdict
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
#: What is left to do after a removal, see ``remove.lua``.
DONE, AGAIN, TRIM, CHANGED = range(4)


class RedisSweeps(RedisOldRuns):
    """The part of the store that tidies up."""

    def notes(self, agent_id: str) -> Notes:
        """See ``CheckpointStore``."""
        [key] = self._keys.of(checked_name(agent_id), "agent")
        return self._parsed_notes(agent_id, self._server.command("HGET", key, "notes") or b"")

    def set_notes(self, agent_id: str, before: Notes, after: Notes) -> bool:
        """See ``CheckpointStore``."""
        keys = self._keys.of(checked_name(agent_id), "agent")
        set_notes = Call.script("set_notes", keys, before.to_bytes(), after.to_bytes())
        listing = self._index.listing(agent_id)
        # Once more behind it: a sweep may have been done with the agent just before.
        [_, is_set, _] = self._server.together(listing, set_notes, listing)
        return bool(is_set)

    def _parsed_notes(self, agent_id: str, stored: bytes) -> Notes:
        try:
            return Notes.from_bytes(stored)
        except ValueError as error:
            where = f"{self._server.where}, notes of agent {agent_id!r}"
            raise StoreDamaged(where=where, reason=str(error)) from error

    # -- seeing --------------------------------------------------------------------------------------

    def sights(self, agent_ids: Sequence[str]) -> builtins.list[Sight]:
        """See ``CheckpointStore``."""
        return [sight for page in _pages(agent_ids, _LOOKS) for sight in self._sights(page)]

    def _sights(self, page: Sequence[str]) -> Iterator[Sight]:
        calls = [
            Call.script("sight", self._keys.of(name, "agent", "runs", "open"), name, LONG, _HEAVY)
            for name in page
        ]
        return map(self._sight, page, self._server.each(*calls))

    def _sight(self, agent_id: str, reply: builtins.list[Any] | StoreError) -> Sight:
        if isinstance(reply, StoreError):
            return Sight(agent_id, seen="?", damage=str(reply))
        if not reply:
            return Sight(agent_id)
        seen, told, busy, named, run, end, first, seq, is_long, cut, flat = reply
        if is_long:
            cut, flat = self._outlines(agent_id)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        lines = {shown(field[2:]): line for field, line in pairs if field[:2] == _FIELD}
        try:
            notes = self._parsed_notes(agent_id, told)
            found = _resized(marks(agent_id, lines.items(), notes), cut)
            last, oldest_end = _last_run(run), parsed_end(end)
            text, places = seen.decode(), (int(first), int(seq))
        except (ValueError, TypeError, AttributeError, StoreDamaged, SchemaTooNew) as error:
            return Sight(agent_id, seen="?", damage=str(error))
        facts = bool(busy), bool(named), last, oldest_end, *places
        return Sight(agent_id, text, found, notes, *facts)

    def _outlines(self, agent_id: str) -> tuple[builtins.list[Any], builtins.list[Any]]:
        """What ``sight.lua`` leaves out of a long history: all that is there from beginning to end."""
        keys, cut, flat = self._keys.of(agent_id, "agent"), builtins.list[Any](), builtins.list[Any]()
        cursor = None
        while cursor != b"0":
            cursor, *part = self._server.run("outlines", keys, cursor or 0)
            cut += part[0]
            flat += part[1]
        return cut, flat

    # -- doing ---------------------------------------------------------------------------------------

    def carry_out(self, verdicts: Sequence[Verdict]) -> builtins.list[Pruned]:
        """See ``CheckpointStore``."""
        pruned: dict[str, Pruned] = {}
        # First, with the notes that were seen: what goes with a checkpoint may change them.
        old_runs = self._forget_runs([v for v in verdicts if v.runs_before and _is_anything(v)])
        replies = self._drop([v for v in verdicts if _is_anything(v)])
        moves: builtins.list[tuple[str, int, float | None]] = []
        for verdict in verdicts:
            name = verdict.sight.agent_id
            pruned[name], is_done = self._done(verdict, replies.get(name))
            if verdict.moment is not None and not pruned[name].forgotten:
                moves.append((name, verdict.moment, verdict.again if is_done else verdict.retry))
        for name, (runs, size) in old_runs.items():
            pruned[name] = pruned[name]._replace(runs=runs, bytes=pruned[name].bytes + size)
        self._index.remove_all([one.agent_id for one in pruned.values() if one.forgotten])
        for one in pruned.values():
            self._index.unregister(one.agent_id, builtins.list(one.ids))
        self._move(moves)
        return [pruned[verdict.sight.agent_id] for verdict in verdicts]

    def _drop(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """What the scripts answered, by agent."""
        replies: dict[str, Any] = {}
        for page in _pages(verdicts, _DROPS):
            names = (verdict.sight.agent_id for verdict in page)
            answers = self._server.each(*map(self._doing, page))
            replies.update(zip(names, answers, strict=True))
        return replies

    def _doing(self, verdict: Verdict) -> Call:
        sight, going = verdict.sight, _first_part(verdict)
        gone = set(going)
        if verdict.forget:
            return Call.script("delete", self._keys.all_of(sight.agent_id), sight.seen, 1)
        staying = [mark for mark in sight.marks if mark.id not in gone]
        newest = FIELD + staying[0].id if staying else ""
        low = min((mark.low for mark in staying), default=0)
        told = sight.notes.to_bytes(), sight.notes.without(gone).to_bytes()
        keys = self._keys.of(sight.agent_id, "agent", "log", "open")
        fields = (FIELD + name for name in going)
        return Call.script("remove", keys, sight.seq, low, newest, *told, sight.seen, *fields)

    def _done(self, verdict: Verdict, reply: Any) -> tuple[Pruned, bool]:
        """What went, and whether that was all."""
        name = verdict.sight.agent_id
        if reply is None:
            return Pruned(name), True
        if isinstance(reply, StoreError):
            not_pruned(verdict, reply)
            return Pruned(name), False
        if verdict.forget:
            if not reply:
                return Pruned(name), False
            ids = tuple(mark.id for mark in verdict.sight.marks)
            return Pruned(name, len(ids), reply[0], forgotten=True, ids=ids), True
        count, trimmed, left = reply
        ids = tuple(_first_part(verdict)) if count else ()
        while left == TRIM:
            trimmed_more, left = self._trim_on(verdict)
            trimmed += trimmed_more
        # Who has a thousand checkpoints to lose loses the others at the next look.
        is_done = left == DONE and len(verdict.drop) <= LONG
        gone = set(ids)
        size = sum(mark.size for mark in verdict.sight.marks if mark.id in gone)
        return Pruned(name, count, size + trimmed, ids=ids), is_done

    def _trim_on(self, verdict: Verdict) -> tuple[int, int]:
        """Trim the next part of a long log."""
        sight = replace(verdict.sight, notes=verdict.sight.notes.without(_first_part(verdict)))
        call = self._doing(Verdict(sight, drop=verdict.drop))
        [(_, trimmed, left)] = self._server.side_by_side(call)
        return trimmed, left


def _pages(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _first_part(verdict: Verdict) -> builtins.list[str]:
    """What goes at once: the oldest, no more than one script drops without keeping others waiting."""
    return verdict.drop[-LONG:]


def _is_anything(verdict: Verdict) -> bool:
    return bool(verdict.sight.seen) and not verdict.sight.damage


def _resized(found: builtins.list[Mark], cut: builtins.list[Any]) -> builtins.list[Mark]:
    """The same, with the sizes of the records that were cut short."""
    if not cut:
        return found
    sizes = dict(zip(map(id_of, cut[::2]), cut[1::2], strict=True))
    return [mark._replace(size=sizes.get(mark.id, mark.size)) for mark in found]


def _last_run(facts: builtins.list[bytes]) -> LastRun | None:
    if not facts:
        return None
    run_id, status, delivered, ending = facts
    fields = decode(ending)
    texts = (fields.get("created_at"), fields.get("ended_at"))
    created_at, ended_at = (datetime.fromisoformat(text) if text else None for text in texts)
    state = RunStatus(status.decode())
    is_settled = state.is_final and delivered == b"1"
    limits = fields.get("keep"), fields.get("max_age")
    return LastRun(run_id.decode(), state, is_settled, created_at or UNKNOWN, ended_at, *limits)
