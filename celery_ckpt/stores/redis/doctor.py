"""What can be wrong with a Redis store: leftovers of crashes, damage, and risky configuration.

``Doctor`` alone reads the whole keyspace (``SCAN``), a page at a time. ``risks_of`` reads the
configuration of the server.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import isfinite
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import NoPermissionError

from celery_ckpt.errors import ConfigurationError, InvalidName, StoreError, StoreUnavailable
from celery_ckpt.records import Finding, RunStatus, Schedule
from celery_ckpt.retention.report import AgentSnapshot
from celery_ckpt.store import CheckpointStore, Durability
from celery_ckpt.stores.findings import (
    PATIENCE,
    damaged,
    leftover,
    misplaced,
    not_indexed,
    not_scheduled,
    scheduled_without_agent,
)
from celery_ckpt.stores.redis.change_index import ChangeIndex
from celery_ckpt.stores.redis.errors import translated
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import FIELD, SHARDS, Keys, agent_named, shown
from celery_ckpt.stores.redis.server import Call, Server
from celery_ckpt.stores.redis.steps import Steps, run_of

T = TypeVar("T")
_PAGE = 500
_SECTIONS = ("memory", "persistence", "replication", "server")


class Doctor:
    """Finds what crashes, failovers and other programs left behind, and repairs it if asked to."""

    def __init__(
        self,
        store: CheckpointStore,
        server: Server,
        keys: Keys,
        index: AgentIndex,
        changes: ChangeIndex,
        steps: Steps,
        repair: bool,
    ) -> None:
        self._store, self._server, self._keys, self._index = store, server, keys, index
        self._changes, self._steps, self._repair = changes, steps, repair

    def findings(self) -> Iterator[Finding]:
        """See ``CheckpointStore.findings``."""
        yield from self._unindexed()
        for shard in SHARDS:
            for page in self._index.pages(shard):
                yield from self._agents(page)
                yield from self._misplaced(page)
            for entries in self._changes.members(shard):
                yield from self._wrong_entries(shard, entries)
            yield from self._foreign_ids(self._keys.ids(shard))
        for on in Schedule:
            for key in self._keys.due_times(on):
                yield from self._due_times(on, key)

    def _unindexed(self) -> Iterator[Finding]:
        """Yield agents that have no entry: an index may be on another server, which lost it."""
        for names in _paged(self._server.scan(self._keys.any_agent())):
            found = [self._keys.agent_in(name) for name in names]
            agents = [agent_id for agent_id in found if agent_id is not None]
            scores = self._server.side_by_side(*(self._index.question(name) for name in agents))
            for agent_id in (name for name, score in zip(agents, scores, strict=True) if score is None):
                if self._index.with_data([agent_id]):
                    if self._repair:
                        self._index.add(agent_id)
                    yield not_indexed(agent_id, self._repair)

    def _agents(self, agent_ids: list[str]) -> Iterator[Finding]:
        for snapshot in self._store.snapshots(agent_ids):
            if not snapshot.seen:
                if self._repair:
                    self._index.remove(snapshot.agent_id)
                what = "an entry for an agent that is gone"
                yield leftover(snapshot.agent_id, what, self._repair)
            elif snapshot.damage:
                yield damaged(snapshot.agent_id, snapshot.damage)
            else:
                yield from self._agent(snapshot)

    def _misplaced(self, agent_ids: list[str]) -> Iterator[Finding]:
        """Yield agents that are missing from the index of changes, or are at a wrong place there."""
        suspects = self._changes.misplaced(agent_ids)
        if suspects:
            time.sleep(PATIENCE)  # they may have just changed
            suspects = self._changes.misplaced(suspects)
        for agent_id in suspects:
            if self._repair:
                self._changes.repair([agent_id])
            yield misplaced(agent_id, self._repair)

    def _wrong_entries(self, shard: str, entries: list[bytes]) -> Iterator[Finding]:
        suspects = self._changes.wrong(entries)
        if suspects:
            time.sleep(PATIENCE)  # the agent may have just changed
            suspects = self._changes.wrong(suspects)
        if suspects and self._repair:
            self._changes.remove(shard, suspects)
        for entry in suspects:
            what = "an entry in the index of changes that does not agree with its record"
            yield leftover(shown(entry), what, self._repair)

    def _agent(self, snapshot: AgentSnapshot) -> Iterator[Finding]:
        agent_id, ids = snapshot.agent_id, {one.id for one in snapshot.checkpoints}
        pins = [name for name in snapshot.policy.pins if name not in ids]
        lows = [one.low for one in snapshot.checkpoints]
        found = ["messages that no checkpoint refers to"] if lows and min(lows) > snapshot.first else []
        found += [f"pins of checkpoints that are gone: {', '.join(pins)}"] if pins else []
        if found and self._repair:
            self._store.remove(agent_id, pins)
        yield from (leftover(agent_id, what, self._repair) for what in found)
        yield from self._steps_left(agent_id)
        for on in self._missing_schedules(agent_id):
            if self._repair:
                self._store.schedule(agent_id, 0, on)
            yield not_scheduled(agent_id, on, self._repair)

    def _steps_left(self, agent_id: str) -> Iterator[Finding]:
        """Yield the runs that have succeeded, and whose steps were not all dropped."""
        suspects = self._succeeded_with_steps(agent_id)
        if suspects:
            time.sleep(PATIENCE)  # the process that settled the run may be about to drop them
            suspects &= self._succeeded_with_steps(agent_id)
        for run_id in sorted(suspects):
            if self._repair:
                self._steps.drop_rest(agent_id, run_id)
            what = f"steps of run {run_id}, which has succeeded"
            yield leftover(agent_id, what, self._repair)

    def _succeeded_with_steps(self, agent_id: str) -> set[str]:
        [index] = self._keys.of(agent_id, "stepidx")
        try:
            run_ids = {run_of(agent_id, name) for name, _ in self._server.scored(index)}
            runs = [self._store.run(agent_id, run_id) for run_id in run_ids]
        except StoreUnavailable:
            raise
        except (StoreError, InvalidName):
            return set()  # the damage is reported for the agent
        settled = (run for run in runs if run is not None and run.is_settled)
        return {run.run_id for run in settled if run.status is RunStatus.SUCCEEDED}

    def _missing_schedules(self, agent_id: str) -> Iterator[Schedule]:
        """Yield the schedules that need the agent, and do not have it."""
        hash_key, open_key = self._keys.of(agent_id, "agent", "open")
        open_runs, listed, due, sweep = self._server.each(
            Call.command("ZCARD", open_key),
            Call.command("HGET", hash_key, "listed"),
            *(
                Call.command("ZSCORE", self._keys.due_times_of(agent_id, on), agent_id)
                for on in Schedule
            ),
        )
        if open_runs and due is None:
            yield Schedule.WATCHDOG
        is_listed = isinstance(listed, bytes) and listed.isdigit() and int(listed) > 0
        if is_listed and sweep is None:
            yield Schedule.SWEEP

    def _foreign_ids(self, key: str) -> Iterator[Finding]:
        for page in _paged(self._server.hash_items(key)):
            gone = self._without_checkpoint(page)
            if gone:
                time.sleep(PATIENCE)  # a save may be about to write the checkpoint
            for checkpoint_id, agent_id in self._without_checkpoint(gone):
                if self._repair:
                    self._server.command("HDEL", key, checkpoint_id)
                what = f"an entry for checkpoint {shown(checkpoint_id)}, which is gone"
                yield leftover(shown(agent_id), what, self._repair)

    def _without_checkpoint(self, entries: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        calls = [
            Call.command("HEXISTS", self._keys.of(shown(agent_id), "agent")[0], FIELD.encode() + name)
            for name, agent_id in entries
        ]
        # An error does not mean that the checkpoint is gone. It is reported for the agent itself.
        found = self._server.each(*calls)
        return [entry for entry, exists in zip(entries, found, strict=True) if not exists]

    def _due_times(self, on: Schedule, key: bytes) -> Iterator[Finding]:
        for page in _paged(self._server.scored(key)):
            given: dict[str, int] = {}
            for name, due_at in page:
                agent_id = agent_named(name)
                if agent_id is not None:
                    given[agent_id] = int(due_at) if isfinite(due_at) else 0
                    continue
                if self._repair:
                    self._server.command("ZREM", key, name)
                what = "a due time for a name that no agent can have"
                yield leftover(shown(name), what, self._repair)
            suspects = given.keys() - self._index.with_data(list(given))
            if suspects:
                time.sleep(PATIENCE)  # a writer may be about to create the agent
            for agent_id in sorted(suspects - self._index.with_data(list(suspects))):
                is_removed = self._repair and self._store.unschedule({agent_id: given[agent_id]}, on)
                if is_removed and self._index.with_data([agent_id]):
                    self._store.schedule(agent_id, 0, on)
                yield scheduled_without_agent(agent_id, on, self._repair)


def _paged(items: Iterable[T]) -> Iterator[list[T]]:
    page: list[T] = []
    for item in items:
        page.append(item)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


# -- risks ---------------------------------------------------------------------------------------------


def risks_of(server: Server, durability: Durability = "default") -> list[str]:
    """Return why the server, or a node of a cluster, may lose what was saved.

    Raises:
        ConfigurationError: the server cannot provide the durability.
        StoreUnavailable: it does not answer.
    """
    try:
        with translated(server.where):
            return list(_risks_of_nodes(server, durability))
    except StoreUnavailable:
        raise
    except StoreError as error:
        return [f"its configuration cannot be read: {error}"]


def _risks_of_nodes(server: Server, durability: Durability) -> Iterator[str]:
    if isinstance(server.client, Redis):
        yield from _risks(_info(server.client), durability, server.where)
        return
    for node in server.client.get_primaries():
        info = _info(server.client.get_redis_connection(node))
        yield from (f"{node.name}: {risk}" for risk in _risks(info, durability, node.name))


def _info(client: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        for section in _SECTIONS:  # Redis 6 takes one at a time
            found |= client.info(section)
    except NoPermissionError as error:  # everything else may be allowed
        raise StoreError(reason=str(error)) from error
    with suppress(NoPermissionError):
        found |= client.config_get("appendfsync")
    return found


def _risks(info: dict[str, Any], durability: Durability, where: str) -> Iterator[str]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}: when memory is short, checkpoints are dropped"
    if durability == "fsync":
        _refuse_unsynced(info, where)
    elif not info.get("aof_enabled"):
        yield "the append-only file is off: a restart loses what was saved since the last snapshot"
    if durability == "replica" and not info.get("connected_slaves"):
        yield "durability is 'replica' and there is none: every save waits until one is connected"


def _refuse_unsynced(info: dict[str, Any], where: str) -> None:
    version = str(
        info.get("redis_version", "0")
    )  # Valkey reports the Redis version it is compatible with
    if tuple(int(part) for part in version.split(".")[:2]) < (7, 2):
        why = f"Redis from 7.2 on, or Valkey; the server at {where} is {version}"
    elif not info.get("aof_enabled"):
        why = f"the append-only file; on the server at {where} it is off (appendonly no)"
    elif info.get("appendfsync") == "no":
        why = f"a server that syncs; the one at {where} never does (appendfsync no)"
    else:
        return
    raise ConfigurationError(reason=f"Durability 'fsync' needs {why}.")
