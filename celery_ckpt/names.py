"""Which names can be stored, and what can be told from a checkpoint's id.

An agent's name may be any text. Where a name has to become a file name, a part of an id or a place
in an index, its *locator* stands for it: 80 bits of its SHA-256, in lower-case base 32. A checkpoint's
id begins with the locator of its agent, so that an id says where to look.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from datetime import datetime
from functools import lru_cache

from celery_ckpt.errors import InvalidName

MAX_NAME_LENGTH = 512
LOCATOR_LENGTH = 16
_LOCATOR_BYTES = 10


def checked_name(name: str, what: str = "An agent_id") -> str:
    """Return ``name`` if it can be stored, in any store, exactly.

    Raises:
        InvalidName: it is empty, too long or not valid Unicode. It is a ``ValueError``.
    """
    if not isinstance(name, str):
        raise InvalidName(what=what, reason=f"is a {type(name).__name__}", limit=MAX_NAME_LENGTH)
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidName(what=what, reason=f"has {len(name)} characters", limit=MAX_NAME_LENGTH)
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidName(
                what=what, reason="holds a lone surrogate", limit=MAX_NAME_LENGTH
            ) from None
    return name


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


@lru_cache(maxsize=1024)
def locator(agent_id: str) -> str:
    """The 16 characters that stand for an agent in ids, file names and indexes."""
    return _base32(hashlib.sha256(agent_id.encode()).digest()[:_LOCATOR_BYTES])


def file_name(name: str) -> str:
    """A safe name of a file for any name; it begins with the locator."""
    return _base32(hashlib.sha256(name.encode()).digest()[:20])


def new_checkpoint_id(agent_id: str, now: datetime) -> str:
    """A new id: the agent's locator, the time in microseconds (so that ids sort) and chance."""
    milliseconds, rest = divmod(round(now.timestamp() * 1_000_000), 1000)
    due_at = milliseconds.to_bytes(6, "big") + rest.to_bytes(2, "big")
    # The extended-hex alphabet of base 32 is the one whose characters sort like what they stand for.
    own = base64.b32hexencode(due_at + secrets.token_bytes(7)).decode().lower()
    return f"{locator(agent_id)}-{own}"


def id_prefix(agent_id: str) -> str:
    """What an agent's checkpoint ids begin with, unless somebody else gave them."""
    return f"{locator(agent_id)}-"


def locator_in(checkpoint_id: str) -> str:
    """The locator that an id begins with, if it names its agent."""
    return checkpoint_id.partition("-")[0]


def names_its_agent(checkpoint_id: str, agent_id: str) -> bool:
    """Does the id begin with this agent's locator, so that no index is needed to find it?"""
    return checkpoint_id.startswith(f"{locator(agent_id)}-")
