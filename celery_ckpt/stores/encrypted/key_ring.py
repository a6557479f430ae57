"""Encryption keys as settings contain them: ``<base64 of 32 bytes>`` or ``<id>:<base64 of 32 bytes>``.

No error shows a key, or a part of one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from celery_ckpt.errors import ConfigurationError

KEY_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_STANDARD = str.maketrans("-_", "+/")
_HOW = "Make one with: openssl rand -base64 32"


@dataclass(frozen=True)
class Key:
    """A key, and the id that is stored with everything it encrypts."""

    id: str
    secret: bytes = field(repr=False)


def parse_keys(given: str | Iterable[str]) -> Sequence[Key]:
    """Return the keys of a list or of a comma-separated text. The first one encrypts.

    Raises:
        ConfigurationError: one of them is not a key, or two have the same id.
    """
    texts = given.split(",") if isinstance(given, str) else list(given)
    keys = [_key(number, text) for number, text in enumerate(texts, 1)]
    names = [key.id for key in keys]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(reason=f"Two of the encryption keys have the id {twice!r}.")
    return keys


def _key(number: int, text: object) -> Key:
    if not isinstance(text, str):
        raise _wrong(number, f"is of type {type(text).__name__}, not text")
    name, colon, encoded = text.strip().rpartition(":")
    if colon and not _ID.fullmatch(name):
        raise _wrong(number, "has an id that is not 1 to 32 letters, digits, - or _")
    secret = _decoded(number, encoded)
    return Key(name or _default_id(secret), secret)


def _decoded(number: int, encoded: str) -> bytes:
    bare = encoded.translate(_STANDARD).rstrip("=")
    try:
        secret = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(number, "is not base64") from None
    if len(secret) != KEY_BYTES:
        raise _wrong(number, f"has {len(secret)} bytes instead of {KEY_BYTES}")
    return secret


def _wrong(number: int, what: str) -> ConfigurationError:
    return ConfigurationError(reason=f"Encryption key number {number} {what}. {_HOW}")


def _default_id(secret: bytes) -> str:
    return hashlib.sha256(b"celery_ckpt key id " + secret).hexdigest()[:8]
