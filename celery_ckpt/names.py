"""Which names can be stored, and the locators that represent them.

An agent's name may be any text. File names, ids and indexes use its *locator* instead: 80 bits of its
SHA-256, in lower-case base 32. The id of a checkpoint begins with the locator of its agent, so a
store can find the agent by the id.
"""

from __future__ import annotations

import base64
import hashlib
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
                what=what, reason="contains a lone surrogate", limit=MAX_NAME_LENGTH
            ) from None
    return name


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


@lru_cache(maxsize=1024)
def locator(agent_id: str) -> str:
    """Return the 16 characters that represent an agent in ids, file names and indexes.

    Raises:
        InvalidName: see ``checked_name``.
    """
    return _base32(hashlib.sha256(checked_name(agent_id).encode()).digest()[:_LOCATOR_BYTES])


def file_name(name: str) -> str:
    """Return a safe file name for any name. It begins with the locator."""
    return _base32(hashlib.sha256(name.encode()).digest()[:20])


def digest_of_run(run_id: str) -> str:
    """Return the 32 characters by which a store remembers a run of a deleted agent: 128 bits, in hex.

    Raises:
        InvalidName: see ``checked_name``.
    """
    return hashlib.sha256(checked_name(run_id, "A run_id").encode()).hexdigest()[:32]


def locator_in(checkpoint_id: str) -> str:
    """Return the locator that an id begins with, if it names its agent."""
    return checkpoint_id.partition("-")[0]


def names_its_agent(checkpoint_id: str, agent_id: str) -> bool:
    """True if the id begins with this agent's locator, so that it needs no entry in an index."""
    return checkpoint_id.startswith(f"{locator(agent_id)}-")
