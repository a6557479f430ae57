r"""Which lease allows to write for an agent: the rules of the stores that decide in Python.

    free --acquire--> held --renew--> held --release--> free
                        \--time--> expired --acquire--> held by another owner, token + 1

An expired lease stays valid until a newer one is given: the newer token fences, not the clock.
``lua/shared.lua`` and ``lua/lease_acquire.lua`` are the same rules for Redis.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from celery_ckpt.errors import LeaseHeld, LeaseLost
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease

#: A year, in seconds. A lease that is renewed need not be longer.
MAX_TTL = 31_536_000
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def checked_ttl(ttl: float) -> timedelta:
    """Return a lease's time to live. Raises ``ValueError`` if it is not over 0, or over a year."""
    if not 0 < ttl <= MAX_TTL:
        raise ValueError(f"A lease of {ttl} seconds: it must be over 0, and at most {MAX_TTL:,}")
    return timedelta(seconds=ttl)


def new_nonce() -> str:
    """Return a random text that distinguishes leases with the same token."""
    return secrets.token_urlsafe(9)


@dataclass(frozen=True)
class LeaseState:
    """The stored lease of an agent. The nonce is empty while the lease is free."""

    token: int = 0
    nonce: str = ""
    owner: str = ""
    expires_at: datetime = _LONG_AGO

    def lease(self, agent_id: str) -> Lease:
        """Return the lease for its holder."""
        return Lease(
            agent_id=agent_id,
            token=self.token,
            nonce=self.nonce,
            owner=self.owner,
            expires_at=self.expires_at,
        )

    def is_held(self, now: datetime) -> bool:
        """Return True if the lease is held and has not expired."""
        return bool(self.nonce) and self.expires_at > now

    def is_(self, lease: Lease) -> bool:
        """Return True if this lease is the newest one given and was not released."""
        return bool(self.nonce) and (self.token, self.nonce) == (lease.token, lease.nonce)

    def granted(
        self, agent_id: str, owner: str, ttl: float, now: datetime, over: Lease | None
    ) -> LeaseState:
        """Return the state after giving the lease to ``owner``. Raises ``LeaseHeld``."""
        span = checked_ttl(ttl)
        checked_name(owner, "A lease's owner")
        if not (over and self.is_(over)):
            self.refuse_if_held(agent_id, now)
        return LeaseState(self.token + 1, new_nonce(), owner, now + span)

    def renewed(self, lease: Lease, ttl: float, now: datetime) -> LeaseState:
        """Return the state after extending a lease. Raises ``LeaseLost``."""
        self.refuse_if_lost(lease)
        return replace(self, expires_at=now + checked_ttl(ttl))

    def released(self) -> LeaseState:
        """Return the state after a release. The token is kept, so that the next one is larger."""
        return LeaseState(token=self.token)

    def refuse(self, agent_id: str, lease: Lease | None, now: datetime) -> None:
        """Raise unless a write with this lease, or without one, is allowed now."""
        if lease is None:
            self.refuse_if_held(agent_id, now)
        elif lease.agent_id != agent_id:
            raise LeaseLost(agent_id=agent_id, token=lease.token)
        else:
            self.refuse_if_lost(lease)

    def refuse_if_held(self, agent_id: str, now: datetime) -> None:
        """Raise ``LeaseHeld`` if the lease is held and has not expired."""
        if self.is_held(now):
            raise LeaseHeld(
                agent_id=agent_id,
                owner=self.owner,
                token=self.token,
                nonce=self.nonce,
                seconds_left=(self.expires_at - now).total_seconds(),
            )

    def refuse_if_lost(self, lease: Lease) -> None:
        """Raise ``LeaseLost`` unless this lease is the newest one given and was not released."""
        if not self.is_(lease):
            raise LeaseLost(agent_id=lease.agent_id, token=lease.token)
