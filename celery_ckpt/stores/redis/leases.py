"""The lease of an agent: the right to write for it, by the server's clock.

A lease is passed to scripts as ``token:nonce`` (``server.fence``). A script that the lease does not
allow to write changes nothing and says why (``refuse``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from celery_ckpt.errors import LeaseHeld, LeaseLost, RunNotFound, StoreDamaged, StoreError
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease, RunRecord
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import Keys
from celery_ckpt.stores.redis.run_line import run_line
from celery_ckpt.stores.redis.schedule import DueTimes
from celery_ckpt.stores.redis.server import Call, Server, fence
from celery_ckpt.stores.rules.leases import checked_ttl, new_nonce

#: How many leases one script renews.
_PAGE = 100
#: A lease, and what its attempt is calling now, as ``lease_renew.lua`` takes it.
Renewal = tuple[Lease, bytes]


def refuse(reply: list[Any], agent_id: str, lease: Lease | None, run_id: str = "") -> None:
    """Raise the error for a script's refusal (see ``shared.lua``), or return if it did not refuse."""
    if reply[0] == b"none":
        raise RunNotFound(agent_id=agent_id, run_id=run_id)
    if reply[0] == b"lost":
        raise LeaseLost(agent_id=agent_id, token=lease.token if lease else 0)
    if reply[0] == b"held":
        # A field that is missing from a damaged agent is None.
        owner, token, nonce, left_ms = (
            fact.decode(errors="replace") if isinstance(fact, bytes) else str(fact or 0)
            for fact in reply[1:]
        )
        raise LeaseHeld(
            agent_id=agent_id,
            owner=owner,
            token=int(token) if token.isdigit() else 0,
            nonce=nonce,
            seconds_left=int(left_ms) / 1000,
        )


def milliseconds(ttl: float) -> int:
    """Return the duration of a lease as scripts take it. Raises ``ValueError``."""
    return max(1, round(checked_ttl(ttl).total_seconds() * 1000))


def granted(agent_id: str, owner: str, nonce: str, token: int, expires_ms: bytes) -> Lease:
    """Return the lease that a script granted."""
    expires_at = _time(expires_ms)
    return Lease(agent_id=agent_id, token=token, nonce=nonce, owner=owner, expires_at=expires_at)


def _renewed(lease: Lease, reply: list[Any]) -> Lease:
    refuse(reply, lease.agent_id, lease)
    return lease.model_copy(update={"expires_at": _time(reply[1])})


def _time(milliseconds: bytes) -> datetime:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)


class Leases:
    """Grants, renews and releases leases."""

    def __init__(
        self,
        server: Server,
        keys: Keys,
        index: AgentIndex,
        due_times: DueTimes,
        limit: Callable[[], int],
    ) -> None:
        self._server, self._keys, self._index = server, keys, index
        self._due_times, self._limit = due_times, limit

    def acquire(self, agent_id: str, owner: str, ttl: float, over: Lease | None) -> Lease:
        """See ``CheckpointStore.acquire``."""
        ttl_ms, nonce = milliseconds(ttl), new_nonce()
        checked_name(owner, "A lease's owner")
        is_known = checked_name(agent_id) in self._index.known
        keys, args = self._keys.of(agent_id, "agent"), (nonce, owner, ttl_ms, fence(agent_id, over))
        if is_known:
            reply = self._server.run("lease_acquire", keys, *args)
        else:
            [reply] = self._index.write(agent_id, Call.script("lease_acquire", keys, *args))
        refuse(reply, agent_id, None)
        if reply[1] == 1 and is_known:
            self._index.add(agent_id)  # the agent was deleted since
        return granted(agent_id, owner, nonce, *reply[1:])

    def renew(self, lease: Lease, ttl: float, call: bytes) -> Lease:
        """See ``CheckpointStore.renew``; ``call`` as ``packed_call`` returns it."""
        keys = self._keys.of(lease.agent_id, "agent")
        own = fence(lease.agent_id, lease)
        reply = self._server.run("lease_renew", keys, own, milliseconds(ttl), call)
        return _renewed(lease, reply)

    def renew_many(self, leases: Sequence[Renewal], ttl: float) -> list[Lease | StoreError]:
        """See ``CheckpointStore.renew_many``."""
        ttl_ms = milliseconds(ttl)
        if self._server.is_cluster:
            return self._each_renewed(leases, ttl_ms)
        pages = [leases[at : at + _PAGE] for at in range(0, len(leases), _PAGE)]
        calls = [self._renewal_of_all(page, ttl_ms) for page in pages]
        results: list[Lease | StoreError] = []
        for page, replies in zip(pages, self._server.each(*calls), strict=True):
            # A server that has a part of a cluster refuses a script for several slots.
            is_refused = isinstance(replies, StoreError)
            results += self._each_renewed(page, ttl_ms) if is_refused else self._read(page, replies)
        return results

    def _renewal_of_all(self, leases: Sequence[Renewal], ttl_ms: int) -> Call:
        keys = [self._keys.of(lease.agent_id, "agent")[0] for lease, _ in leases]
        each = (arg for lease, call in leases for arg in (fence(lease.agent_id, lease), call))
        return Call.script("lease_renew_many", keys, ttl_ms, *each)

    def _each_renewed(self, leases: Sequence[Renewal], ttl_ms: int) -> list[Lease | StoreError]:
        """Renew leases with one script each, in one round trip to each node."""
        calls = [
            Call.script(
                "lease_renew",
                self._keys.of(lease.agent_id, "agent"),
                fence(lease.agent_id, lease),
                ttl_ms,
                call,
            )
            for lease, call in leases
        ]
        return self._read(leases, self._server.each(*calls))

    def _read(self, leases: Sequence[Renewal], replies: Sequence[Any]) -> list[Lease | StoreError]:
        pairs = zip(leases, replies, strict=True)
        return [self._renewed_or_error(lease, reply) for (lease, _), reply in pairs]

    def _renewed_or_error(self, lease: Lease, reply: Any) -> Lease | StoreError:
        if isinstance(reply, StoreError):
            return reply
        if reply[0] == b"damaged":
            [key] = self._keys.of(lease.agent_id, "agent")
            return self._server.refused(key, reply[1])
        try:
            return _renewed(lease, reply)
        except StoreError as error:
            return error

    def release(self, lease: Lease, run: RunRecord | None, due_in: float | None, log: bytes) -> bool:
        """See ``CheckpointStore.release``."""
        agent_id = lease.agent_id
        keys = self._keys.of(agent_id, "agent", "attempts", "entries", *(("runs",) if run else ()))
        record = () if run is None else (run.run_id, run_line(run, self._limit()))
        own = fence(agent_id, lease)
        release = Call.script("lease_release", keys, own, new_nonce(), log, *record)
        scheduled = self._due_times.addition(agent_id, due_in)
        if run is None:
            *_, reply = self._server.together(*scheduled, release)
        else:
            *_, reply = self._index.change(agent_id, release, before=scheduled)
        refuse(reply, agent_id, lease, run.run_id if run else "")
        return bool(reply[0] == b"ok")

    def holder(self, agent_id: str) -> Lease | None:
        """See ``CheckpointStore.holder``."""
        reply = self._server.run("lease_holder", self._keys.of(checked_name(agent_id), "agent"))
        return self.parsed(agent_id, reply)

    def parsed(self, agent_id: str, facts: list[bytes]) -> Lease | None:
        """Return the lease that is held. Raises ``StoreDamaged``."""
        if not facts:
            return None
        owner, token, nonce, expires_ms = facts[:4]
        try:
            return Lease(
                agent_id=agent_id,
                owner=owner.decode(),
                token=int(token),
                nonce=nonce.decode(),
                expires_at=_time(expires_ms),
            )
        except (ValueError, OverflowError, AttributeError, TypeError) as error:
            where = f"{self._server.where}, lease of agent {agent_id!r}"
            raise StoreDamaged(where=where, reason=str(error)) from error
