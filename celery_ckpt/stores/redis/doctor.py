"""What crashes, failovers and other people's hands leave behind in Redis.

This alone looks at the whole keyspace (``SCAN``), a page at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import TypeVar

from celery_ckpt.records import Finding, Schedule
from celery_ckpt.retention.report import AgentSnapshot
from celery_ckpt.stores.findings import (
    PATIENCE,
    damaged,
    moment_for_nobody,
    overlooked,
    unneeded,
    unnoticed,
)
from celery_ckpt.stores.redis.keys import FIELD, SHARDS, agent_named, shown
from celery_ckpt.stores.redis.pruning import RedisSweeps
from celery_ckpt.stores.redis.server import Call

T = TypeVar("T")
_PAGE = 500


def findings_of(store: RedisSweeps, repair: bool) -> Iterator[Finding]:
    """See ``CheckpointStore.ailments``."""
    yield from _unindexed(store, repair)
    for shard in SHARDS:
        for page in store._index.pages(shard):
            yield from _of_agents(store, page, repair)
        yield from _foreign_ids(store, shard, repair)
    for on in Schedule:
        for key in store._keys.moments(on):
            yield from _moments(store, on, key, repair)


def _unindexed(store: RedisSweeps, repair: bool) -> Iterator[Finding]:
    """Agents that are not among all agents: an index can lie on another server, which lost it."""
    for names in _paged(store._server.scan(store._keys.any_agent())):
        found = [store._keys.agent_in(name) for name in names]
        agents = [agent_id for agent_id in found if agent_id is not None]
        scores = store._server.side_by_side(*(store._index.question(name) for name in agents))
        for agent_id in (name for name, score in zip(agents, scores, strict=True) if score is None):
            if store._index.with_data([agent_id]):
                if repair:
                    store._index.add(agent_id)
                yield unnoticed(agent_id, repair)


def _of_agents(store: RedisSweeps, agent_ids: list[str], repair: bool) -> Iterator[Finding]:
    for snapshot in store.snapshots(agent_ids):
        if not snapshot.seen:
            if repair:
                store._index.remove(snapshot.agent_id)
            yield unneeded(snapshot.agent_id, "an entry for an agent that is gone", repair)
        elif snapshot.damage:
            yield damaged(snapshot.agent_id, snapshot.damage)
        else:
            yield from _of_agent(store, snapshot, repair)


def _of_agent(store: RedisSweeps, snapshot: AgentSnapshot, repair: bool) -> Iterator[Finding]:
    agent_id, ids = snapshot.agent_id, {mark.id for mark in snapshot.marks}
    pins = [name for name in snapshot.policy.pins if name not in ids]
    lows = [mark.low for mark in snapshot.marks]
    found = ["messages that no checkpoint refers to"] if lows and min(lows) > snapshot.first else []
    found += [f"pins of checkpoints that are gone: {', '.join(pins)}"] if pins else []
    if found and repair:
        store.remove(agent_id, pins)
    yield from (unneeded(agent_id, what, repair) for what in found)
    for on in _waiting(store, agent_id):
        if repair:
            store.schedule(agent_id, 0, on)
        yield overlooked(agent_id, on, repair)


def _waiting(store: RedisSweeps, agent_id: str) -> Iterator[Schedule]:
    """Those who should look at the agent, and will not."""
    keys, (hash_key, open_key) = store._keys, store._keys.of(agent_id, "agent", "open")
    open_runs, listed, due, sweep = store._server.each(
        Call.command("LLEN", open_key),
        Call.command("HGET", hash_key, "listed"),
        *(Call.command("ZSCORE", keys.moments_of(agent_id, on), agent_id) for on in Schedule),
    )
    if open_runs and due is None:
        yield Schedule.WATCHDOG
    is_listed = isinstance(listed, bytes) and listed.isdigit() and int(listed) > 0
    if is_listed and sweep is None:
        yield Schedule.SWEEP


def _foreign_ids(store: RedisSweeps, shard: str, repair: bool) -> Iterator[Finding]:
    key = store._keys.ids(shard)
    for page in _paged(store._server.hash_items(key)):
        gone = _without_checkpoint(store, page)
        if gone:
            time.sleep(PATIENCE)  # somebody may be about to save it
        for checkpoint_id, agent_id in _without_checkpoint(store, gone):
            if repair:
                store._server.command("HDEL", key, checkpoint_id)
            what = f"an entry for checkpoint {shown(checkpoint_id)}, which is gone"
            yield unneeded(shown(agent_id), what, repair)


def _without_checkpoint(
    store: RedisSweeps, entries: list[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    calls = [
        Call.command("HEXISTS", store._keys.of(shown(agent_id), "agent")[0], FIELD.encode() + name)
        for name, agent_id in entries
    ]
    # An error is not "it is gone": it is told where the agent itself is looked at.
    there = store._server.each(*calls)
    return [entry for entry, is_there in zip(entries, there, strict=True) if not is_there]


def _moments(store: RedisSweeps, on: Schedule, key: bytes, repair: bool) -> Iterator[Finding]:
    for page in _paged(store._server.scored(key)):
        given = {name: due_at for name, due_at in _named(page)}
        for name in (name for name, _ in page if agent_named(name) is None):
            if repair:
                store._server.command("ZREM", key, name)
            yield unneeded(shown(name), "a moment for what can be no agent's name", repair)
        suspects = given.keys() - store._index.with_data(list(given))
        if suspects:
            time.sleep(PATIENCE)  # somebody may be about to write the agent
        for agent_id in sorted(suspects - store._index.with_data(list(suspects))):
            is_removed = repair and store.unschedule({agent_id: given[agent_id]}, on)
            if is_removed and store._index.with_data([agent_id]):
                store.schedule(agent_id, 0, on)
            yield moment_for_nobody(agent_id, on, repair)


def _named(page: list[tuple[bytes, float]]) -> Iterator[tuple[str, int]]:
    for name, due_at in page:
        agent_id = agent_named(name)
        if agent_id is not None:
            yield agent_id, int(due_at) if isfinite(due_at) else 0


def _paged(items: Iterable[T]) -> Iterator[list[T]]:
    page: list[T] = []
    for item in items:
        page.append(item)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page
