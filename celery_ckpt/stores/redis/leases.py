"""Leases and steps in Redis."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime
from typing import Any

from celery_ckpt.errors import AlreadyExists, LeaseHeld, LeaseLost, RunNotFound, StoreDamaged
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease, RunRecord, Step
from celery_ckpt.stores.encoding import decoded_step, encoded, is_same
from celery_ckpt.stores.redis.run_lines import run_line, usage_word
from celery_ckpt.stores.redis.schedule import RedisMoments
from celery_ckpt.stores.redis.server import Call
from celery_ckpt.stores.rules.leases import checked_ttl, new_nonce
from celery_ckpt.usage import Usage


def refuse(reply: list[Any], agent_id: str, lease: Lease | None, run_id: str = "") -> None:
    """Raise what a script's refusal means (see ``shared.lua``)."""
    if reply[0] == b"none":
        raise RunNotFound(agent_id=agent_id, run_id=run_id)
    if reply[0] == b"lost":
        raise LeaseLost(agent_id=agent_id, token=lease.token if lease else 0)
    if reply[0] == b"held":
        owner, token, nonce, left_ms = (_text(fact) for fact in reply[1:])
        raise LeaseHeld(
            agent_id=agent_id,
            owner=owner,
            token=int(token) if token.isdigit() else 0,
            nonce=nonce,
            seconds_left=int(left_ms) / 1000,
        )


def fence(agent_id: str, lease: Lease | None) -> str:
    """A lease as the scripts take it; one of another agent is none that this agent can have given."""
    if lease is None:
        return ""
    return f"{lease.token}:{lease.nonce}" if lease.agent_id == agent_id else "0:"


def _text(fact: bytes | int | None) -> str:
    # Nothing: somebody has taken it away.
    return fact.decode(errors="replace") if isinstance(fact, bytes) else str(fact or 0)


def _moment(milliseconds: bytes) -> datetime:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)


class RedisLedger(RedisMoments):
    """The part of the store that says who may write, and what was done."""

    max_checkpoint_bytes: int

    # -- leases --------------------------------------------------------------------------------------

    def acquire(self, agent_id: str, owner: str, ttl: float, *, over: Lease | None = None) -> Lease:
        """See ``CheckpointStore``."""
        ttl_ms = milliseconds(ttl)
        checked_name(owner, "A lease's owner")
        self._index.ensure(checked_name(agent_id))
        nonce = new_nonce()
        old = fence(agent_id, over)
        keys = self._keys.of(agent_id, "agent")
        reply = self._server.run("lease_acquire", keys, nonce, owner, ttl_ms, old)
        refuse(reply, agent_id, None)
        if reply[1] == 1:
            self._index.add(agent_id)
        return lease_of(agent_id, owner, nonce, reply[1:])

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """See ``CheckpointStore``."""
        keys = self._keys.of(lease.agent_id, "agent")
        reply = self._server.run("lease_renew", keys, fence(lease.agent_id, lease), milliseconds(ttl))
        refuse(reply, lease.agent_id, lease)
        return lease.model_copy(update={"expires_at": _moment(reply[1])})

    def release(
        self, lease: Lease, *, run: RunRecord | None = None, due_in: float | None = None
    ) -> bool:
        """See ``CheckpointStore``."""
        own = fence(lease.agent_id, lease)
        keys = self._keys.of(lease.agent_id, "agent", *(("runs",) if run else ()))
        record = () if run is None else (run.run_id, self._line(run))
        release = Call.script("lease_release", keys, own, new_nonce(), *record)
        *_, reply = self._server.together(*self._watching(lease.agent_id, due_in), release)
        refuse(reply, lease.agent_id, lease, run.run_id if run else "")
        return bool(reply[0] == b"ok")

    def holder(self, agent_id: str) -> Lease | None:
        """See ``CheckpointStore``."""
        reply = self._server.run("lease_holder", self._keys.of(checked_name(agent_id), "agent"))
        return self._holder(agent_id, reply)

    def _holder(self, agent_id: str, facts: builtins.list[bytes]) -> Lease | None:
        if not facts:
            return None
        owner, token, nonce, expires_ms = facts
        try:
            return Lease(
                agent_id=agent_id,
                owner=owner.decode(),
                token=int(token),
                nonce=nonce.decode(),
                expires_at=_moment(expires_ms),
            )
        except (ValueError, OverflowError, AttributeError, TypeError) as error:
            where = f"{self._server.where}, lease of agent {agent_id!r}"
            raise StoreDamaged(where=where, reason=str(error)) from error

    # -- steps ---------------------------------------------------------------------------------------

    def record_step(self, step: Step, lease: Lease | None = None, *, paid: Usage | None = None) -> None:
        """See ``CheckpointStore``."""
        value = encoded(step, self.max_checkpoint_bytes)
        agent_id = step.agent_id
        self._index.ensure(agent_id)
        reply = self._server.run(
            "step_record",
            self._keys.of(agent_id, "agent", "steps", "stepidx", *(("runs",) if paid else ())),
            fence(agent_id, lease),
            run_prefix(step.run_id) + step.key,
            step.iteration,
            value,
            *((step.run_id, usage_word(paid)) if paid else ()),
        )
        if reply[0] == b"exists":
            if not is_same(decoded_step(agent_id, step.run_id, _content(reply[1])), step):
                raise AlreadyExists(what=f"Step {step.key!r}", agent_id=agent_id)
            return
        refuse(reply, agent_id, lease)
        if reply[1]:
            self._index.add(agent_id)

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        flat = self._server.run("hash_all", self._keys.of(checked_name(agent_id), "steps"))
        prefix = run_prefix(run_id).encode()
        pairs = zip(flat[::2], flat[1::2], strict=True)
        values = [value for field, value in pairs if field.startswith(prefix)]
        return [
            decoded_step(agent_id, run_id, _content(value)) for value in sorted(values, key=number_of)
        ]

    def drop_steps(
        self,
        agent_id: str,
        run_id: str,
        *,
        first: int = 0,
        last: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        """See ``CheckpointStore``."""
        checked_name(run_id, "A run_id")
        reply = self._server.run(
            "step_drop",
            self._keys.of(checked_name(agent_id), "agent", "steps", "stepidx"),
            fence(agent_id, lease),
            run_prefix(run_id),
            first,
            "+inf" if last is None else last,
        )
        refuse(reply, agent_id, lease)
        return int(reply[1])

    def _line(self, run: RunRecord) -> bytes:
        return run_line(run, self.max_checkpoint_bytes)


def lease_of(agent_id: str, owner: str, nonce: str, facts: list[Any]) -> Lease:
    """The lease that a script gave: its token and the end of its time."""
    token, expires_ms = facts
    expires_at = _moment(expires_ms)
    return Lease(agent_id=agent_id, token=token, nonce=nonce, owner=owner, expires_at=expires_at)


def milliseconds(ttl: float) -> int:
    """A lease's time as scripts take it."""
    return max(1, round(checked_ttl(ttl).total_seconds() * 1000))


def run_prefix(run_id: str) -> str:
    """What the names of a run's steps begin with."""
    # The length keeps run "a:b" with key "c" apart from run "a" with key "b:c".
    return f"{len(run_id)}:{run_id}:"


def number_of(stored: bytes) -> int:
    """The number that a stored step or run begins with: their order."""
    number = stored.partition(b" ")[0]
    return int(number[:20]) if number.isdigit() else 0


def _content(stored: bytes) -> bytes:
    return stored.partition(b" ")[2]
