"""``RedisCheckpointStore``: plain Redis from 6.2 and Valkey, alone, behind Sentinel or as a cluster.

All keys of an agent have its name as their hash tag, so that one script is one atomic step and a
cluster keeps them together. ``docs/reference/storage-format.md`` describes every key.

The store itself saves and loads checkpoints. Everything else it leaves to its parts, each a class in
a file of its own that knows the server, the keys and the index, and no other part's data.
"""
# ruff: noqa: D102  (CheckpointStore documents these methods)

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from celery_ckpt.clock import system_clock
from celery_ckpt.errors import CheckpointDamaged, StoreError
from celery_ckpt.event_log import LogEntry
from celery_ckpt.json_values import encode
from celery_ckpt.names import checked_name
from celery_ckpt.page_cursor import PageCursor
from celery_ckpt.records import (
    AgentActivity,
    AgentOutline,
    AgentPage,
    Change,
    CurrentCall,
    Finding,
    Lease,
    RunOutline,
    RunRecord,
    RunStatus,
    Schedule,
    StartResult,
    Step,
)
from celery_ckpt.retention.report import AgentPolicy, AgentSnapshot, PrunePlan, PruneResult
from celery_ckpt.store import (
    DEFAULT_MAX_CHECKPOINT_BYTES,
    DEFAULT_REMEMBER,
    Durability,
    checked_limit,
    checked_page_limit,
    checked_status,
)
from celery_ckpt.stores.encryption_tag import (
    plain_log,
    plain_outlines,
    plain_run,
    plain_runs,
    plain_start,
    plain_steps,
)
from celery_ckpt.stores.log.draft import Basis, Draft
from celery_ckpt.stores.log.ranges import Span
from celery_ckpt.stores.log.record import Record
from celery_ckpt.stores.log.store import (
    BasisGone,
    LogStore,
    SavedBefore,
    Stored,
    newest_first,
    ranges_of_all,
)
from celery_ckpt.stores.redis.addresses import AnyClient, connect, without_password
from celery_ckpt.stores.redis.change_index import ChangeIndex
from celery_ckpt.stores.redis.checkpoints import Checkpoints, parsed_policy
from celery_ckpt.stores.redis.current_call import packed_call
from celery_ckpt.stores.redis.doctor import Doctor, risks_of
from celery_ckpt.stores.redis.durability import server_for
from celery_ckpt.stores.redis.event_log import EventLog, packed, packed_start
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import FIELD, Keys, id_of
from celery_ckpt.stores.redis.leases import Leases, refuse
from celery_ckpt.stores.redis.markers import Markers
from celery_ckpt.stores.redis.pruning import Pruning
from celery_ckpt.stores.redis.rewrite import Rewrite
from celery_ckpt.stores.redis.run_line import run_line
from celery_ckpt.stores.redis.runs import Runs
from celery_ckpt.stores.redis.schedule import DueTimes
from celery_ckpt.stores.redis.server import Call, Server, fence
from celery_ckpt.stores.redis.steps import Steps
from celery_ckpt.stores.rules.deletion import checked_remember
from celery_ckpt.stores.rules.event_log import ends_as_cancelled, settlement
from celery_ckpt.usage import Usage

DEFAULT_KEY_PREFIX = "ckpt:"
#: How many of a log's newest messages are read with the latest checkpoint, which rarely needs others.
_NEWEST = 4096
#: What ``checkpoint_save.lua`` replies if the agent must be listed for a sweep.
_UNLISTED = [b"unlisted"]


class RedisCheckpointStore(LogStore):
    """Keeps everything in Redis or Valkey. A client that was passed in is never closed.

    With ``durability`` a write returns when it is on the server's disk, or on a replica.
    """

    features = frozenset({"rewrite", "reschedule", "log"})

    def __init__(
        self,
        client: AnyClient,
        *,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        max_checkpoint_bytes: int = DEFAULT_MAX_CHECKPOINT_BYTES,
        where: str = "the given client",
        durability: Durability = "default",
    ) -> None:
        super().__init__(max_checkpoint_bytes=max_checkpoint_bytes)
        self._keys, self._durability = Keys(key_prefix), durability
        self._owns_client = False
        self._use(server_for(client, where, durability))

    def _use(self, server: Server) -> None:
        """Make the parts of the store."""
        keys = self._keys

        def limit() -> int:
            return self.max_checkpoint_bytes  # which may be changed later

        def log_limit() -> int:
            return self.event_log_limit  # which may be changed later

        self._server = server
        self._changes = changes = ChangeIndex(self, server, keys)
        self._index = index = AgentIndex(server, keys, changes)
        self._due_times = due_times = DueTimes(server, keys)
        self._markers = markers = Markers(server, keys)
        self._checkpoints = Checkpoints(server, keys, index, markers)
        self._leases = Leases(server, keys, index, due_times, limit)
        self._steps = Steps(server, keys, index, limit)
        self._runs = Runs(server, keys, index, due_times, self._leases, markers, self._steps, limit)
        self._pruning = Pruning(server, keys, index, due_times)
        self._event_log = EventLog(server, keys, log_limit)
        self._rewrite = Rewrite(self, server, keys, self._steps, self._runs, self._event_log, limit)

    def _packed(self, agent_id: str, log: Sequence[LogEntry]) -> bytes:
        return packed(agent_id, log, self.event_log_limit) if log else b""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Connect to a URL; ``celery_ckpt.stores.redis.addresses`` lists its forms."""
        store = cls(connect(url), where=without_password(url), **options)
        store._owns_client = True
        return store

    def close(self) -> None:
        """Close the connections, if the store made them."""
        if self._owns_client:
            self._server.client.close()

    # -- checkpoints ---------------------------------------------------------------------------------

    def _append(
        self,
        agent_id: str,
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
        run: RunRecord | None,
        log: Sequence[LogEntry],
    ) -> int:
        of_run = ("runs", "attempts", "entries") if run else ()
        keys = self._keys.of(agent_id, "agent", "log", "live", *of_run)
        ending = () if run is None else self._ending(run, log)
        basis, more = draft.basis, (*ending, *draft.messages)
        args = (
            FIELD + checkpoint_id,
            basis.value if isinstance(basis, Basis) else FIELD + basis,
            draft.mark,
            fence(agent_id, lease),
            draft.rest,
        )
        reply: Any = _UNLISTED
        if agent_id in self._index.known and (run or not log):
            if run is None:
                reply = self._server.run("checkpoint_save", keys, *args, "", *more)
            else:
                save = Call.script("checkpoint_save", keys, *args, "", *more)
                [reply] = self._index.change(agent_id, save)
            if isinstance(reply, int):
                return reply
        if reply[0] == _UNLISTED[0]:
            # This process has not listed the agent, or a sweep has finished with it since.
            save = Call.script("checkpoint_save", keys, *args, "1", *more)
            noted = [self._event_log.noting(agent_id, log)] if log and not run else []
            reply, *_ = self._index.write(agent_id, save, *noted, has_changed=run is not None)
            if isinstance(reply, int):
                return reply
        if reply[0] == b"exists":
            raise SavedBefore(Record.parse(agent_id, checkpoint_id, reply[1]).digest)
        if reply[0] == b"stale":
            self._index.forget(agent_id)
            raise BasisGone
        if reply[0] in (
            b"lost",
            b"none",
        ):  # the agent may have been deleted before its entry was written
            self._index.remove_if_gone(agent_id)
        refuse(reply, agent_id, lease, run.run_id if run else "")
        raise AssertionError(f"checkpoint_save.lua does not reply {reply!r}")

    def _ending(self, run: RunRecord, log: Sequence[LogEntry]) -> tuple[str, bytes, bytes]:
        line = run_line(run, self.max_checkpoint_bytes)
        return run.run_id, line, self._packed(run.agent_id, log)

    def _record_and_append(
        self,
        step: Step,
        paid: Usage | None,
        log: Sequence[LogEntry],
        checkpoint_id: str,
        draft: Draft,
        lease: Lease | None,
    ) -> int | None:
        agent_id, basis = step.agent_id, draft.basis
        is_known = agent_id in self._index.known
        record = self._steps.recording(step, lease, paid, self._packed(agent_id, log))
        save = Call.script(
            "checkpoint_save",
            self._keys.of(agent_id, "agent", "log", "live"),
            FIELD + checkpoint_id,
            basis.value if isinstance(basis, Basis) else FIELD + basis,
            draft.mark,
            fence(agent_id, lease),
            draft.rest,
            "" if is_known else "1",
            *draft.messages,
        )
        if is_known:
            # Both for one slot: one script, in a cluster too. The new message is part of the step, or
            # contains its text, unless it is encrypted.
            value = step.__dict__["value"]
            common = [*draft.messages[-1:], *([encode(value)] if isinstance(value, str) else ())]
            both = Call.joined(record, save, deciding=1, common=common if draft.messages else ())
            [replies] = self._server.together(both)
        else:
            replies = self._index.write(agent_id, record, save)
        if self._steps.is_first(replies[0], step, lease) and is_known:
            self._index.add(agent_id)  # the agent was deleted since
        return replies[1] if isinstance(replies[1], int) else None

    def _register(self, checkpoint_id: str, agent_id: str) -> None:
        self._index.register(checkpoint_id, agent_id)

    def _agents_that_may_have(self, checkpoint_id: str) -> Iterable[str]:
        return self._index.agents_that_may_have(checkpoint_id)

    def _read(self, agent_id: str, checkpoint_id: str | None) -> Stored | None:
        (status, *found), newest = self._found(agent_id, checkpoint_id)
        if status == b"none":
            return None
        name = id_of(found[0])
        if status == b"missing":
            raise CheckpointDamaged(
                agent_id=agent_id, checkpoint_id=name, reason="its record is missing"
            )
        if status == b"newest":
            return Stored(agent_id, name, found[1], dict(enumerate(newest, int(found[2]))))
        record = Record.parse(agent_id, name, found[1])
        return Stored(agent_id, name, found[1], _by_offset(record.spans, found[2:]))

    def _found(self, agent_id: str, checkpoint_id: str | None) -> tuple[Any, builtins.list[bytes]]:
        """Return the reply of ``checkpoint_load.lua`` and, for the latest, the newest messages."""
        keys = self._keys.of(agent_id, "agent", "log")
        if checkpoint_id is None:
            load = Call.script("checkpoint_load", keys, "", _NEWEST)
            newest = Call.command("LRANGE", keys[1], -_NEWEST, -1)
            if (both := self._server.at_once(load, newest)) is not None:
                return both[0], both[1]
        field = FIELD + checkpoint_id if checkpoint_id else ""
        return self._server.run("checkpoint_load", keys, field, 0), []

    def _read_many(
        self, agent_id: str, limit: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], Mapping[int, bytes]]:
        lines = newest_first(self._lines(agent_id))[:limit]
        spans = ranges_of_all(agent_id, lines).spans
        first, *reply = self._server.run(
            "checkpoint_messages",
            self._keys.of(agent_id, "agent", "log"),
            len(lines),
            *(FIELD + name for name, _ in lines),
            *(number for start, count, _ in spans for number in (start, count)),
        )
        there = [named for named, is_there in zip(lines, reply, strict=False) if is_there]
        # The log may have been trimmed since the lines were read.
        left = [
            (max(start, first), start + count - max(start, first), new) for start, count, new in spans
        ]
        return there, _by_offset(left, reply[len(lines) :])

    def _read_messages(
        self, agent_id: str, checkpoint_id: str, wanted: slice
    ) -> tuple[int, int, builtins.list[bytes]] | None:
        keys, stop = self._keys.of(agent_id, "agent", "log"), wanted.stop
        bounds = wanted.start, "" if stop is None else stop
        status, *found = self._server.run("message_page", keys, FIELD + checkpoint_id, *bounds)
        if status == b"none":
            return None
        if status == b"unusual":
            # Usually raises the error that says what is wrong with the line.
            record = Record.parse(agent_id, checkpoint_id, found[0])
            total, start, ranges = record.places(wanted)
            stored = self._read(agent_id, checkpoint_id)
            return None if stored is None else (total, start, record.lines(ranges, stored.messages))
        total, start, *parts = found
        lines = [message for part in parts for message in part]
        if len(lines) != len(range(*wanted.indices(total))):
            reason = "some of its messages are missing"
            raise CheckpointDamaged(agent_id=agent_id, checkpoint_id=checkpoint_id, reason=reason)
        return total, start, lines

    def _page(
        self, agent_id: str, limit: int | None, before: int | None
    ) -> tuple[builtins.list[tuple[str, bytes]], AgentPolicy]:
        if limit is None and before is None:
            _, stored, lines = self._checkpoints.lines(agent_id)
        else:
            stored, lines = self._checkpoints.page(agent_id, limit, before)
        return newest_first(lines)[:limit], parsed_policy(self._server.where, agent_id, stored)

    def _lines(self, agent_id: str) -> Iterable[tuple[str, bytes]]:
        return self._checkpoints.lines(agent_id).lines

    def remove(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> int:
        for checkpoint_id in checkpoint_ids:
            checked_name(checkpoint_id, "A checkpoint id")
        return self._checkpoints.remove(checked_name(agent_id), checkpoint_ids)

    def delete(self, agent_id: str, *, remember: float = DEFAULT_REMEMBER) -> int:
        return self._checkpoints.delete_agent(checked_name(agent_id), checked_remember(remember))

    def was_deleted(self, run_id: str) -> bool:
        return self._markers.has(run_id)

    def agents(self) -> Iterator[str]:
        return self._index.agents()

    def page(
        self,
        status: RunStatus | str | None = None,
        *,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> AgentPage:
        place = None if after is None else PageCursor.parse(after)
        return self._changes.page(checked_status(status), prefix, checked_page_limit(limit), place)

    def outline(self, agent_id: str) -> AgentOutline | None:
        return self._changes.outline(checked_name(agent_id))

    # -- leases and steps ----------------------------------------------------------------------------

    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        return self._leases.acquire(agent_id, owner, ttl, over)

    def renew(self, lease: Lease, ttl: float, *, call: CurrentCall | None = None) -> Lease:
        return self._leases.renew(lease, ttl, packed_call(call, self.event_log_limit))

    def renew_many(
        self, leases: Sequence[Lease], ttl: float, *, calls: Sequence[CurrentCall | None] = ()
    ) -> builtins.list[Lease | StoreError]:
        known = calls or [None] * len(leases)
        named = [packed_call(call, self.event_log_limit) for call in known]
        return self._leases.renew_many(builtins.list(zip(leases, named, strict=True)), ttl)

    def release(
        self,
        lease: Lease,
        *,
        run: RunRecord | None = None,
        due_in: float | None = None,
        log: Sequence[LogEntry] = (),
    ) -> bool:
        return self._leases.release(lease, run, due_in, self._packed(lease.agent_id, log))

    def holder(self, agent_id: str) -> Lease | None:
        return self._leases.holder(agent_id)

    def record_step(
        self,
        step: Step,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        self._steps.record(step, lease, paid, self._packed(step.agent_id, log))

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        return plain_steps(self, self._steps.of_run(agent_id, run_id))

    def drop_steps(
        self,
        agent_id: str,
        run_id: str,
        *,
        first: int = 0,
        last: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        return self._steps.drop(agent_id, run_id, first, last, lease)

    # -- runs ----------------------------------------------------------------------------------------

    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        return self._runs.add(run, due_in)

    def update_run(
        self, run: RunRecord, lease: Lease | None = None, *, log: Sequence[LogEntry] = ()
    ) -> None:
        self._runs.update(run, lease, self._packed(run.agent_id, log))

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        return plain_run(self, self._runs.get(agent_id, run_id))

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        return plain_runs(self, [run for _, run in self._runs.numbered(agent_id)])

    def last_run(self, agent_id: str) -> RunRecord | None:
        return plain_run(self, self._runs.last(agent_id))

    def run_outlines(
        self, agent_id: str, *, limit: int | None = None, before: str | None = None
    ) -> builtins.list[RunOutline]:
        checked_limit(limit, "run_outlines")
        return plain_outlines(self, self._runs.outlines(agent_id, limit, before))

    def start_run(
        self,
        run: RunRecord,
        owner: str,
        ttl: float,
        *,
        over: Lease | None = None,
        recorded: bool = False,
        worker: str = "",
    ) -> StartResult:
        data = {"run_id": run.run_id, **({"worker": worker} if worker else {})}
        entry = LogEntry("attempt", system_clock.now(), data)
        noted = packed_start(run.agent_id, entry, self.event_log_limit)
        return plain_start(self, self._runs.start(run, owner, ttl, over, recorded, noted))

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        log = self._packed(run.agent_id, settlement(run, system_clock.now()))
        return plain_run(self, self._runs.settle(run, lease, log))

    def pass_turn(self, agent_id: str, run_id: str, waited: float) -> RunRecord | None:
        return plain_run(self, self._runs.pass_turn(agent_id, run_id, waited))

    def cancel_run(
        self, agent_id: str, run_id: str, owner: str, ttl: float, *, log: Sequence[LogEntry] = ()
    ) -> Lease | None:
        entries = ends_as_cancelled(log, run_id, system_clock.now())
        return self._runs.cancel(agent_id, run_id, owner, ttl, self._packed(agent_id, entries))

    def activity(self, agent_id: str) -> AgentActivity:
        activity = self._runs.activity(agent_id)
        plain_runs(self, activity.open)
        return activity

    # -- the event log -------------------------------------------------------------------------------

    def event_log(
        self, agent_id: str, *, after: int | None = None, limit: int | None = None
    ) -> builtins.list[LogEntry]:
        checked_limit(limit, "event_log")
        return plain_log(self, agent_id, self._event_log.page(agent_id, after, limit))

    def note(self, agent_id: str, log: Sequence[LogEntry], *, copied: bool = False) -> bool:
        return self._event_log.note(agent_id, log, copied)

    def follow(self, agent_id: str, seconds: float) -> int:
        return self._event_log.follow(agent_id, seconds)

    def stream(self, lease: Lease, log: Sequence[LogEntry]) -> bool:
        return self._event_log.stream(lease, log)

    # -- schedules and pruning -----------------------------------------------------------------------

    def schedule(self, agent_id: str, after: float, on: Schedule = Schedule.WATCHDOG) -> int:
        return self._due_times.add(agent_id, after, on)

    def unschedule(self, due_times: Mapping[str, int], on: Schedule = Schedule.WATCHDOG) -> int:
        return self._due_times.remove(due_times, on)

    def reschedule(
        self, due_times: Mapping[str, int], after: float, on: Schedule = Schedule.WATCHDOG
    ) -> dict[str, int]:
        moves = ((checked_name(name), due_at, after) for name, due_at in due_times.items())
        return self._due_times.move(moves, on)

    def claim_due(
        self, limit: int, hold: float, on: Schedule = Schedule.WATCHDOG
    ) -> builtins.list[tuple[str, int]]:
        return self._due_times.claim(limit, hold, on)

    def count_due(self, on: Schedule = Schedule.WATCHDOG) -> int:
        return self._due_times.count(on)

    def count_watchdogs(self, name: str, seconds: float) -> int:
        return self._due_times.count_watchdogs(name, seconds)

    def policy(self, agent_id: str) -> AgentPolicy:
        return self._pruning.policy(agent_id)

    def set_policy(self, agent_id: str, before: AgentPolicy, after: AgentPolicy) -> bool:
        return self._pruning.set_policy(agent_id, before, after)

    def snapshots(self, agent_ids: Sequence[str]) -> builtins.list[AgentSnapshot]:
        return self._pruning.snapshots(agent_ids)

    def apply(self, plans: Sequence[PrunePlan]) -> builtins.list[PruneResult]:
        return self._pruning.apply(plans)

    # -- the store as a whole ------------------------------------------------------------------------

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        return self._rewrite.apply(agent_id, change, lease)

    def findings(self, repair: bool = False) -> Iterator[Finding]:
        parts = self._index, self._changes, self._steps
        return Doctor(self, self._server, self._keys, *parts, repair).findings()

    def risks(self) -> builtins.list[str]:
        return risks_of(self._server, self._durability)


def _by_offset(spans: Iterable[Span], parts: builtins.list[builtins.list[bytes]]) -> dict[int, bytes]:
    """Return the messages by offset. The last ones are missing if the log ends too early."""
    messages: dict[int, bytes] = {}
    for (start, _, _), lines in zip(spans, parts, strict=False):
        messages.update(enumerate(lines, start))
    return messages
