"""Run records in Redis, and whose turn it is."""

from __future__ import annotations

import builtins

from celery_ckpt.errors import RunOver
from celery_ckpt.names import MAX_NAME_LENGTH, checked_name
from celery_ckpt.records import AgentActivity, Lease, RunRecord, StartResult
from celery_ckpt.stores.encoding import is_same
from celery_ckpt.stores.redis.keys import shown
from celery_ckpt.stores.redis.leases import (
    RedisLedger,
    fence,
    lease_of,
    milliseconds,
    number_of,
    refuse,
    run_prefix,
)
from celery_ckpt.stores.redis.run_lines import parsed_run, refuse_damaged, usage_word, word
from celery_ckpt.stores.redis.server import Call
from celery_ckpt.stores.rules.leases import new_nonce


class RedisTurns(RedisLedger):
    """The part of the store that knows the runs."""

    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        """See ``CheckpointStore``."""
        keys = self._keys.of(run.agent_id, "agent", "runs", "open")
        line = usage_word(run.usage).encode() + b" " + self._line(run)
        added = Call.script("run_add", keys, run.run_id, line)
        entry = self._index.entry(run.agent_id)
        # The entry once more behind it: somebody may be deleting the agent just now.
        *_, reply, _ = self._server.together(*self._watching(run.agent_id, due_in), entry, added, entry)
        if reply[0] == b"exists":
            return is_same(parsed_run(run.agent_id, run.run_id, reply[1]), run)
        return True

    def update_run(self, run: RunRecord, lease: Lease | None = None) -> None:
        """See ``CheckpointStore``."""
        keys = self._keys.of(run.agent_id, "agent", "runs", "open")
        own = fence(run.agent_id, lease)
        reply = self._server.run("run_update", keys, own, run.run_id, self._line(run))
        refuse(reply, run.agent_id, lease, run.run_id)

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        [key] = self._keys.of(checked_name(agent_id), "runs")
        stored = self._server.command("HGET", key, run_id)
        return None if stored is None else parsed_run(agent_id, run_id, stored)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        """See ``CheckpointStore``."""
        flat = self._server.run("hash_all", self._keys.of(checked_name(agent_id), "runs"))
        pairs = sorted(zip(flat[::2], flat[1::2], strict=True), key=lambda pair: number_of(pair[1]))
        return [parsed_run(agent_id, shown(run_id), line) for run_id, line in pairs]

    # -- whose turn it is ----------------------------------------------------------------------------

    def start_run(
        self, run: RunRecord, owner: str, ttl: float, *, over: Lease | None = None
    ) -> StartResult:
        """See ``CheckpointStore``."""
        agent_id, nonce = run.agent_id, new_nonce()
        start = Call.script(
            "run_start",
            self._keys.of(agent_id, "agent", "runs"),
            run.run_id,
            word(run.delivery),
            nonce,
            checked_name(owner, "A lease's owner"),
            milliseconds(ttl),
            fence(agent_id, over),
        )
        due_at, reply = self._server.together(*self._watching(agent_id, ttl), start)
        if reply[0] == b"none":
            if run.is_settled:
                return StartResult(run=run, due_at=due_at)
            self.add_run(run)
            return self.start_run(run, owner, ttl, over=over)
        refuse(reply, agent_id, None)
        if reply[0] == b"damaged":
            refuse_damaged(agent_id, run.run_id, reply[1])
        record = parsed_run(agent_id, run.run_id, reply[1])
        lease = lease_of(agent_id, owner, nonce, reply[2:]) if reply[0] == b"ok" else None
        return StartResult(run=record, lease=lease, due_at=due_at)

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        """See ``CheckpointStore``."""
        agent_id, settled = run.agent_id, run.model_copy(update={"delivered": True})
        settle = Call.script(
            "run_settle",
            self._keys.of(agent_id, "agent", "steps", "stepidx", "runs", "open"),
            fence(agent_id, lease),
            new_nonce(),
            run.run_id,
            self._line(settled),
            run_prefix(run.run_id),
        )
        # Listed behind it, or a sweep could be done with the agent just before. Whoever dies in between
        # leaves the agent to a watchdog, which lists it before it stops watching it.
        [reply, _] = self._server.together(settle, self._index.listing(agent_id))
        if reply[0] == b"none":
            self._index.remove(agent_id)  # it was deleted: nothing is to be left of it
        refuse(reply, agent_id, lease, run.run_id)
        return parsed_run(agent_id, shown(reply[1]), reply[2]) if reply[0] == b"next" else None

    def cancel_run(self, agent_id: str, run_id: str, owner: str, ttl: float) -> Lease | None:
        """See ``CheckpointStore``."""
        nonce = new_nonce()
        checked_name(owner, "A lease's owner")
        keys = self._keys.of(checked_name(agent_id), "agent", "runs")
        reply = self._server.run("run_cancel", keys, run_id, nonce, owner, milliseconds(ttl))
        refuse(reply, agent_id, None, run_id)
        if reply[0] == b"damaged":
            refuse_damaged(agent_id, run_id, reply[1])
        if reply[0] == b"over":
            raise RunOver(agent_id=agent_id, run_id=run_id, status=shown(reply[1]))
        return lease_of(agent_id, owner, nonce, reply[1:]) if reply[1:] else None

    def activity(self, agent_id: str) -> AgentActivity:
        """See ``CheckpointStore``."""
        keys = self._keys.of(checked_name(agent_id), "agent", "runs", "open")
        active, left_ms, holder, *flat = self._server.run("agent_activity", keys)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return AgentActivity(
            active=shown(active)[:MAX_NAME_LENGTH] or None,
            open=[parsed_run(agent_id, shown(run_id), line) for run_id, line in pairs if line],
            holder=self._holder(agent_id, holder),
            seconds_left=left_ms / 1000,
        )
