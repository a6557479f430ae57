"""What a sweep reads of agents, and how its plans are carried out: many agents in one round trip.

A plan is applied only to an agent that has not changed since its snapshot was taken. Old runs are
deleted in parts, and a long log is trimmed in parts, so that no script blocks the server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from celery_ckpt.errors import SchemaTooNew, StoreDamaged, StoreError
from celery_ckpt.json_values import decode
from celery_ckpt.names import checked_name
from celery_ckpt.records import RunStatus, Schedule
from celery_ckpt.retention.report import (
    AgentPolicy,
    AgentSnapshot,
    PrunePlan,
    PruneResult,
    RunSummary,
)
from celery_ckpt.stores.log.summaries import UNKNOWN, summaries
from celery_ckpt.stores.redis.checkpoints import DONE, GONE, LONG, TRIM, parsed_policy
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import FIELD, Keys, id_of
from celery_ckpt.stores.redis.schedule import DueTimes
from celery_ckpt.stores.redis.server import Call, Server

logger = logging.getLogger(__name__)
T = TypeVar("T")

_FIELD = FIELD.encode()
#: How many agents are read by one script, and pruned in one round trip. Twenty snapshots take 1 or
#: 2 ms. Of the removals, which name the checkpoints, a server executes what it has read from one
#: client, up to 16 KB, before it serves the next.
_SNAPSHOTS, _REMOVALS = 20, 100
#: An agent with more bytes is read in parts. To read twenty agents with that many takes a few ms.
_HEAVY = 100_000
#: Where the deletion of old runs starts, see ``run_delete.lua``.
_START = (b"0", b"0", b"")


class _OldRuns(NamedTuple):
    """How many runs of an agent were deleted, and how large they were."""

    runs: int = 0
    bytes: int = 0


class Pruning:
    """Takes snapshots of agents, and applies plans to them."""

    def __init__(self, server: Server, keys: Keys, index: AgentIndex, due_times: DueTimes) -> None:
        self._server, self._keys = server, keys
        self._index, self._due_times = index, due_times

    def policy(self, agent_id: str) -> AgentPolicy:
        """See ``CheckpointStore.policy``."""
        [key] = self._keys.of(checked_name(agent_id), "agent")
        stored = self._server.command("HGET", key, "policy") or b""
        return parsed_policy(self._server.where, agent_id, stored)

    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        """See ``CheckpointStore.set_policy``."""
        keys = self._keys.of(checked_name(agent_id), "agent")
        set_policy = Call.script("agent_set_policy", keys, before.to_bytes(), after.to_bytes())
        listing = self._index.listing(agent_id)
        # Listed again afterwards: a sweep may have finished with the agent just before the change.
        [_, is_set, _] = self._server.together(listing, set_policy, listing)
        return bool(is_set)

    # -- snapshots -----------------------------------------------------------------------------------

    def snapshots(self, agent_ids: Sequence[str]) -> list[AgentSnapshot]:
        """See ``CheckpointStore.snapshots``."""
        found: list[AgentSnapshot] = []
        for page in _pages(agent_ids, _SNAPSHOTS):
            calls = [self._reading(agent_id) for agent_id in page]
            # As one script, this takes two thirds of the client's time.
            replies = self._server.as_one(*calls) or self._server.each(*calls)
            found += map(self._snapshot, page, replies)
        return found

    def _reading(self, agent_id: str) -> Call:
        keys = self._keys.of(agent_id, "agent", "runs", "open")
        return Call.script("agent_snapshot", keys, agent_id, LONG, _HEAVY)

    def _snapshot(self, agent_id: str, reply: list[Any] | StoreError) -> AgentSnapshot:
        if isinstance(reply, StoreError):
            return AgentSnapshot(agent_id, seen="?", damage=str(reply))
        if not reply:
            return AgentSnapshot(agent_id)
        seen, stored, busy, named, run, end, first, seq, is_long, cut, flat = reply
        if is_long:
            cut, flat = self._scanned(agent_id)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        # As ``id_of``, without the calls: there are as many names as checkpoints.
        lines = {
            field[2:].decode(errors="backslashreplace"): line
            for field, line in pairs
            if field[:2] == _FIELD
        }
        # Records that were cut short have their real sizes in a list of their own.
        sizes = dict(zip(map(id_of, cut[::2]), cut[1::2], strict=True))
        try:
            policy = parsed_policy(self._server.where, agent_id, stored)
            found = summaries(agent_id, lines.items(), policy)
            if sizes:
                found = [one._replace(size=sizes.get(one.id, one.size)) for one in found]
            last, earliest_end = _last_run(run), _parsed_end(end)
            text, places = seen.decode(), (int(first), int(seq))
        except (ValueError, TypeError, AttributeError, StoreDamaged, SchemaTooNew) as error:
            return AgentSnapshot(agent_id, seen="?", damage=str(error))
        facts = bool(busy), bool(named), last, earliest_end, *places
        return AgentSnapshot(agent_id, text, found, policy, *facts)

    def _scanned(self, agent_id: str) -> tuple[list[Any], list[Any]]:
        """Read the history that was too long for ``agent_snapshot.lua``, part by part."""
        keys, cut, flat = self._keys.of(agent_id, "agent"), list[Any](), list[Any]()
        cursor = None
        while cursor != b"0":
            cursor, *part = self._server.run("checkpoint_scan", keys, cursor or 0)
            cut += part[0]
            flat += part[1]
        return cut, flat

    # -- plans ---------------------------------------------------------------------------------------

    def apply(self, plans: Sequence[PrunePlan]) -> list[PruneResult]:
        """See ``CheckpointStore.apply``."""
        results: dict[str, PruneResult] = {}
        readable = [plan for plan in plans if plan.snapshot.seen and not plan.snapshot.damage]
        # Runs first, while the policy is the one in the snapshot: removing a checkpoint may change it.
        old_runs = self._delete_old_runs([plan for plan in readable if plan.runs_before])
        replies: dict[str, Any] = {}
        for page in _pages(readable, _REMOVALS):
            names = (plan.snapshot.agent_id for plan in page)
            replies.update(zip(names, self._server.each(*map(self._removal, page)), strict=True))
        moves: list[tuple[str, int, float | None]] = []
        for plan in plans:
            name = plan.snapshot.agent_id
            results[name], is_done = self._result(plan, replies.get(name))
            if plan.due_at is not None and not results[name].forgotten:
                moves.append((name, plan.due_at, plan.again if is_done else plan.retry))
        for name, (runs, size) in old_runs.items():
            results[name] = results[name]._replace(runs=runs, bytes=results[name].bytes + size)
        # An entry without an agent was left by a writer that died, or by a refused write.
        gone = [plan.snapshot.agent_id for plan in plans if not plan.snapshot.seen]
        gone += [one.agent_id for one in results.values() if one.forgotten]
        changed = {name: replies[name][0] or b"" for name in gone if name in replies}
        self._index.remove_all(gone, changed)
        for one in results.values():
            self._index.unregister(one.agent_id, list(one.ids))
        self._due_times.move(moves, Schedule.SWEEP)
        return [results[plan.snapshot.agent_id] for plan in plans]

    def _removal(self, plan: PrunePlan) -> Call:
        snapshot, going = plan.snapshot, _first_part(plan)
        if plan.forget:
            keys = self._keys.all_of(snapshot.agent_id)
            noted = Call.command("HGET", keys[0], "changed")
            return Call.joined(noted, Call.script("agent_delete", keys, snapshot.seen, 1, "*"))
        removed = set(going)
        staying = [one for one in snapshot.checkpoints if one.id not in removed]
        return Call.script(
            "checkpoint_remove",
            self._keys.of(snapshot.agent_id, "agent", "log", "open"),
            snapshot.seq,
            min((one.low for one in staying), default=0),
            FIELD + staying[0].id if staying else "",
            snapshot.policy.to_bytes(),
            snapshot.policy.without(removed).to_bytes(),
            snapshot.seen,
            *(FIELD + name for name in going),
        )

    def _result(self, plan: PrunePlan, reply: Any) -> tuple[PruneResult, bool]:
        """Return what was removed, and whether the sweep has finished with the agent."""
        name = plan.snapshot.agent_id
        if reply is None:
            return PruneResult(name), True
        if isinstance(reply, StoreError):
            _report_damage(plan, reply)
            return PruneResult(name), False
        if plan.forget:
            if not reply[1]:
                return PruneResult(name), False
            ids, [size] = tuple(one.id for one in plan.snapshot.checkpoints), reply[1]
            if size == GONE:
                # The connection broke after the deletion, and the driver has sent the script again.
                size = sum(one.size for one in plan.snapshot.checkpoints)
            return PruneResult(name, len(ids), size, forgotten=True, ids=ids), True
        count, trimmed, left = reply
        ids = tuple(_first_part(plan)) if count else ()
        while left == TRIM:
            policy = plan.snapshot.policy.without(_first_part(plan))
            rest = PrunePlan(replace(plan.snapshot, policy=policy), remove=plan.remove)
            [(_, more, left)] = self._server.side_by_side(self._removal(rest))
            trimmed += more
        # An agent with more than LONG checkpoints to remove loses the rest at the next sweep.
        is_done = left == DONE and len(plan.remove) <= LONG
        removed = set(ids)
        size = sum(one.size for one in plan.snapshot.checkpoints if one.id in removed)
        return PruneResult(name, count, size + trimmed, ids=ids), is_done

    def _delete_old_runs(self, plans: Sequence[PrunePlan]) -> dict[str, _OldRuns]:
        deleted: dict[str, _OldRuns] = {}
        left = {plan.snapshot.agent_id: (plan, _START) for plan in plans}
        while left:
            replies = self._server.each(*(self._part_of_runs(*one) for one in left.values()))
            for (name, (plan, _)), reply in zip(list(left.items()), replies, strict=True):
                if isinstance(reply, StoreError):
                    _report_damage(plan, reply)
                    del left[name]
                    continue
                is_all, runs, size, *place = reply
                before = deleted.get(name, _OldRuns())
                deleted[name] = _OldRuns(before.runs + runs, before.bytes + size)
                left[name] = plan, (place[0], place[1], place[2])
                if is_all:
                    del left[name]
        return deleted

    def _part_of_runs(self, plan: PrunePlan, place: tuple[bytes, bytes, bytes]) -> Call:
        snapshot, before = plan.snapshot, ""
        if plan.runs_before is not None:
            # Without the Z, texts sort like the times that they represent, with a fraction or without.
            before = plan.runs_before.astimezone(UTC).replace(tzinfo=None).isoformat()
        keys = self._keys.of(snapshot.agent_id, "agent", "steps", "stepidx", "runs")
        policy = snapshot.policy.to_bytes()
        return Call.script("run_delete", keys, snapshot.agent_id, policy, before, *place)


def _pages(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _first_part(plan: PrunePlan) -> list[str]:
    """Return the checkpoints that are removed now: the oldest, as many as one script may remove."""
    return plan.remove[-LONG:]


def _report_damage(plan: PrunePlan, error: StoreError) -> None:
    """Log that a key of an agent is damaged, so that a sweep continues with the other agents.

    Raises:
        StoreError: the plan is not part of a sweep: the caller named the agent.
    """
    if plan.due_at is None:
        raise error
    logger.error("Could not prune agent %r: %s", plan.snapshot.agent_id, error)


def _last_run(facts: list[bytes]) -> RunSummary | None:
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


def _parsed_end(earliest_end: bytes) -> datetime | None:
    """Parse ``earliest_end`` of ``agent_snapshot.lua``. An unknown time is before all others."""
    if not earliest_end:
        return None
    try:
        return datetime.fromisoformat(earliest_end.decode()).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
