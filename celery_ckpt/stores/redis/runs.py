"""The runs of an agent: their records, their order, and which of them is active."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

from celery_ckpt.errors import RunNotFound, RunOver, StoreError
from celery_ckpt.names import MAX_NAME_LENGTH, checked_name
from celery_ckpt.records import (
    MANY_RUNS,
    AgentActivity,
    Lease,
    RunOutline,
    RunRecord,
    Schedule,
    StartResult,
)
from celery_ckpt.stores.encoding import is_same
from celery_ckpt.stores.encryption_tag import key_of_outline
from celery_ckpt.stores.redis.current_call import call_in
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import Keys, shown
from celery_ckpt.stores.redis.leases import Leases, granted, milliseconds, refuse
from celery_ckpt.stores.redis.markers import Markers
from celery_ckpt.stores.redis.run_line import (
    number_of,
    parsed_outline,
    parsed_run,
    place_of,
    refuse_damaged,
    run_line,
    text_of,
    usage_word,
    word,
)
from celery_ckpt.stores.redis.schedule import DueTimes
from celery_ckpt.stores.redis.server import Call, Server, fence
from celery_ckpt.stores.redis.steps import Steps, run_prefix
from celery_ckpt.stores.rules.deletion import deleted_start
from celery_ckpt.stores.rules.leases import new_nonce


class Runs:
    """Keeps run records, and decides whose turn it is."""

    def __init__(
        self,
        server: Server,
        keys: Keys,
        index: AgentIndex,
        due_times: DueTimes,
        leases: Leases,
        markers: Markers,
        steps: Steps,
        limit: Callable[[], int],
    ) -> None:
        self._steps = steps
        self._server, self._keys, self._index, self._markers = server, keys, index, markers
        self._due_times, self._leases, self._limit = due_times, leases, limit

    def add(self, run: RunRecord, due_in: float | None) -> bool:
        """See ``CheckpointStore.add_run``."""
        keys = self._keys.of(run.agent_id, "agent", "runs", "open")
        line = usage_word(run.usage).encode() + b" " + run_line(run, self._limit())
        add = Call.script("run_add", keys, run.run_id, line, place_of(run))
        entry = self._index.entry(run.agent_id)
        scheduled = self._due_times.addition(run.agent_id, due_in)
        # The entry again after the run: the agent may be deleted at the same time.
        before, after = [*scheduled, entry], [entry]
        *_, reply, _ = self._index.change(run.agent_id, add, before=before, after=after)
        if reply[0] == b"exists":
            return is_same(parsed_run(run.agent_id, run.run_id, reply[1]), run)
        return True

    def update(self, run: RunRecord, lease: Lease | None, log: bytes) -> None:
        """See ``CheckpointStore.update_run``."""
        keys = self._keys.of(run.agent_id, "agent", "runs", "open", "attempts", "entries")
        own, line = fence(run.agent_id, lease), run_line(run, self._limit())
        update = Call.script("run_update", keys, own, run.run_id, line, log)
        [reply] = self._index.change(run.agent_id, update)
        refuse(reply, run.agent_id, lease, run.run_id)

    def get(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore.run``."""
        checked_name(run_id, "A run_id")
        [key] = self._keys.of(checked_name(agent_id), "runs")
        stored = self._server.command("HGET", key, run_id)
        return None if stored is None else parsed_run(agent_id, run_id, stored)

    def numbered(self, agent_id: str) -> list[tuple[int, RunRecord]]:
        """Return all runs in the order in which they were sent, with the numbers that give it.

        Reads page by page (see ``lua/hash_page.lua``).
        """
        lines = self._server.whole_hash(self._keys.of(checked_name(agent_id), "runs"))
        pairs = sorted(lines.items(), key=lambda pair: number_of(pair[1]))
        return [(number_of(line), parsed_run(agent_id, shown(name), line)) for name, line in pairs]

    def last(self, agent_id: str) -> RunRecord | None:
        """See ``CheckpointStore.last_run``."""
        [key] = self._keys.of(checked_name(agent_id), "agent")
        last = self._server.command("HGET", key, "last")
        return None if last is None else self.get(agent_id, shown(last))

    def outlines(
        self, agent_id: str, limit: int | None, before: str | None
    ) -> list[tuple[RunOutline, str | None]]:
        """Return the last runs without envelope and result, each with the key it is encrypted with."""
        if before is not None:
            checked_name(before, "A run_id")
        keys, cursor = self._keys.of(checked_name(agent_id), "runs"), b""
        bounds = sys.maxsize if limit is None else limit, before or ""
        found: dict[bytes, tuple[bytes, bytes]] = {}
        while cursor != b"0":
            cursor, *flat = self._server.run("run_page", keys, cursor or b"0", *bounds)
            if cursor == b"none":
                raise RunNotFound(agent_id=agent_id, run_id=before or "")
            found.update(zip(flat[::3], zip(flat[1::3], flat[2::3], strict=True), strict=True))
        lines = sorted(found.items(), key=lambda one: number_of(one[1][0]), reverse=True)
        runs = [
            (parsed_outline(agent_id, shown(name), line), envelope)
            for name, (line, envelope) in lines[:limit]
        ]
        return [(run, key_of_outline(run, envelope)) for run, envelope in runs]

    def start(
        self,
        run: RunRecord,
        owner: str,
        ttl: float,
        over: Lease | None,
        recorded: bool,
        noted: tuple[bytes, bytes],
    ) -> StartResult:
        """See ``CheckpointStore.start_run``."""
        agent_id, nonce = run.agent_id, new_nonce()
        start = Call.script(
            "run_start",
            self._keys.of(agent_id, "agent", "runs", "open", "attempts"),
            run.run_id,
            word(run.delivery),
            nonce,
            checked_name(owner, "A lease's owner"),
            milliseconds(ttl),
            fence(agent_id, over),
            "recorded" if recorded else "final" if run.status.is_final else "",
            word(run.trace),
            *noted,
        )
        scheduled = self._due_times.addition(agent_id, ttl)
        due_at, reply = self._index.change(agent_id, start, before=scheduled)
        if reply[0] == b"none":
            if recorded:
                is_deleted = self._markers.has(run.run_id)
                if is_deleted:
                    return deleted_start(run)
                return self.start(run, owner, ttl, over, False, noted)
            if run.is_settled:
                return StartResult(run=run, due_at=due_at)
            # Without its trace: no attempt came before.
            self.add(run.model_copy(update={"trace": ""}), None)
            return self.start(run, owner, ttl, over, False, noted)
        refuse(reply, agent_id, None)
        if reply[0] == b"damaged":
            refuse_damaged(agent_id, run.run_id, reply[1])
        record = parsed_run(agent_id, run.run_id, reply[1])
        if reply[0] == b"ok":
            lease = granted(agent_id, owner, nonce, *reply[2:4])
            trace = text_of(reply[4]) if reply[4:] else ""
            # Usually it is due when the lease ends, or soon before: when the run should have begun.
            # If it is due earlier, the watchdog would look before the first renewal.
            if int(reply[3]) * 1000 - due_at > milliseconds(ttl) * 1000 // 2:
                moved = self._due_times.move([(agent_id, due_at, ttl)], Schedule.WATCHDOG)
                due_at = moved.get(agent_id, due_at)
            return StartResult(run=record, lease=lease, due_at=due_at, trace_before=trace)
        following = parsed_run(agent_id, shown(reply[2]), reply[3]) if reply[2:] else None
        return StartResult(run=record, next=following, due_at=due_at)

    def settle(self, run: RunRecord, lease: Lease | None, log: bytes) -> RunRecord | None:
        """See ``CheckpointStore.settle_run``."""
        agent_id, settled = run.agent_id, run.model_copy(update={"delivered": True})
        settle = Call.script(
            "run_settle",
            self._keys.of(agent_id, "agent", "steps", "stepidx", "runs", "open", "attempts", "entries"),
            fence(agent_id, lease),
            new_nonce(),
            run.run_id,
            run_line(settled, self._limit()),
            run_prefix(run.run_id),
            log,
        )
        # The agent is listed after the run is settled: listed before, a sweep could finish with it in
        # between. A process that dies in between leaves the agent to the watchdog, which lists it
        # before it unschedules it.
        listing = self._index.listing(agent_id)
        [reply, _] = self._index.change(agent_id, settle, after=[listing])
        if reply[0] == b"none":
            self._index.remove(agent_id)  # the agent was deleted: leave no entry behind
        refuse(reply, agent_id, lease, run.run_id)
        if reply[1]:
            # The run is settled: the caller must learn which run is next. The doctor finds the rest.
            with suppress(StoreError):
                self._steps.drop_rest(agent_id, run.run_id)
        return parsed_run(agent_id, shown(reply[2]), reply[3]) if reply[0] == b"next" else None

    def pass_turn(self, agent_id: str, run_id: str, waited: float) -> RunRecord | None:
        """See ``CheckpointStore.pass_turn``."""
        checked_name(run_id, "A run_id")
        keys = self._keys.of(checked_name(agent_id), "agent", "runs", "open")
        turn = Call.script("run_pass", keys, run_id, int(waited * 1000), new_nonce())
        [reply] = self._index.change(agent_id, turn)
        return parsed_run(agent_id, shown(reply[1]), reply[2]) if reply[0] == b"next" else None

    def cancel(self, agent_id: str, run_id: str, owner: str, ttl: float, log: bytes) -> Lease | None:
        """See ``CheckpointStore.cancel_run``."""
        nonce = new_nonce()
        checked_name(owner, "A lease's owner")
        names = ("agent", "runs", "open", "attempts", "entries")
        keys = self._keys.of(checked_name(agent_id), *names)
        cancel = Call.script("run_cancel", keys, run_id, nonce, owner, milliseconds(ttl), log)
        [reply] = self._index.change(agent_id, cancel)
        refuse(reply, agent_id, None, run_id)
        if reply[0] == b"damaged":
            refuse_damaged(agent_id, run_id, reply[1])
        if reply[0] == b"ended":
            raise RunOver(agent_id=agent_id, run_id=run_id, status=shown(reply[1]))
        return granted(agent_id, owner, nonce, *reply[1:]) if reply[1:] else None

    def activity(self, agent_id: str) -> AgentActivity:
        """See ``CheckpointStore.activity``."""
        keys = self._keys.of(checked_name(agent_id), "agent", "runs", "open")
        reply = self._server.run("agent_activity", keys, MANY_RUNS // 2)
        active, left_ms, holder, count, *flat = reply
        pairs = sorted(zip(flat[::2], flat[1::2], strict=True), key=lambda pair: number_of(pair[1]))
        return AgentActivity(
            active=shown(active)[:MAX_NAME_LENGTH] or None,
            open=[parsed_run(agent_id, shown(run_id), line) for run_id, line in pairs],
            count=count,
            holder=self._leases.parsed(agent_id, holder),
            seconds_left=left_ms / 1000,
            call=call_in(holder[4]) if holder else None,
        )
