"""Sealing: AES-256-GCM, under a key of each agent's own, bound to what the sealed value is.

    "<id of the key>.<base64 of nonce and ciphertext>"

Each agent's keys are derived (HKDF) from a key in the settings. The nonce is made of the value itself
(HMAC over what it is bound to and the value), so that what is sealed twice is the same text: a write
may be repeated, and a writer finds the messages that are stored already. Two different values have two
different nonces, so none is ever used for both.
"""

from __future__ import annotations

import hmac
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.json_values import encode
from celery_ckpt.stores.encrypted.keys import KEY_BYTES, Key

_NONCE_BYTES = 12
_DERIVED_FOR = b"celery_ckpt seal 1 "
_REMEMBERED = 1024


class Altered(Exception):
    """A sealed value that was not sealed as what it is said to be, or not with that key."""


class UnknownKey(Exception):
    """A value that was sealed with a key that is not there; it is called ``key_id``."""

    def __init__(self, key_id: str) -> None:
        super().__init__(key_id)
        self.key_id = key_id


class Seals:
    """Some keys, as they seal and open; the first one seals."""

    def __init__(self, keys: Sequence[Key]) -> None:
        if not keys:
            raise ConfigurationError(reason="There is no encryption key.")
        _cryptography()  # better missed now than at the first save
        self._keys = {key.id: key for key in keys}
        #: The id of the key that seals.
        self.key_id = keys[0].id
        self._derived = lru_cache(maxsize=_REMEMBERED)(self._derive)

    def _derive(self, key_id: str, agent_id: str) -> DerivedKeys:
        if key_id not in self._keys:
            raise UnknownKey(key_id[:32])  # it may be anything that somebody has put there
        return DerivedKeys(self._keys[key_id], agent_id)

    def seal(self, agent_id: str, value: bytes, bound: bytes) -> str:
        """Seal a value of an agent's as what it is."""
        return f"{self.key_id}.{self._derived(self.key_id, agent_id).seal(value, bound)}"

    def open(self, agent_id: str, sealed: str, bound: bytes) -> bytes:
        """The value again.

        Raises:
            Altered: it is not what was sealed there.
            UnknownKey: it was sealed with another key.
        """
        key_id, _, text = sealed.partition(".")
        return self._derived(key_id, agent_id).open(text, bound)

    def blinded(self, agent_id: str, name: str) -> str:
        """A name that stands for a name, the same for the same, and says nothing about it."""
        return self._derived(self.key_id, agent_id).blinded(name)


class DerivedKeys:
    """What one key does for one agent."""

    def __init__(self, key: Key, agent_id: str) -> None:
        aesgcm, hkdf, sha256, self._invalid = _cryptography()
        derived = hkdf(
            algorithm=sha256(), length=3 * KEY_BYTES, salt=None, info=_DERIVED_FOR + agent_id.encode()
        ).derive(key.secret)
        self._cipher = aesgcm(derived[:KEY_BYTES])
        self._nonces = derived[KEY_BYTES : 2 * KEY_BYTES]
        self._names = derived[2 * KEY_BYTES :]

    def seal(self, value: bytes, bound: bytes) -> str:
        """The text that stands for a value."""
        # The length keeps what it is bound to apart from the value.
        nonce = hmac.digest(self._nonces, b"%d %b%b" % (len(bound), bound, value), "sha256")
        nonce = nonce[:_NONCE_BYTES]
        return b2a_base64(nonce + self._cipher.encrypt(nonce, value, bound), newline=False).decode()

    def open(self, text: str, bound: bytes) -> bytes:
        """The value that a text stands for. Raises ``Altered``."""
        try:
            raw = a2b_base64(text.encode("ascii"), strict_mode=True)
            value: bytes = self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], bound)
        except (self._invalid, NotBase64, ValueError):
            raise Altered("it was altered, moved or exchanged since it was sealed") from None
        return value

    def blinded(self, name: str) -> str:
        """See ``Seals``."""
        return hmac.digest(self._names, name.encode(), "sha256").hex()[:32]


def _cryptography() -> tuple[Any, Any, Any, type[Exception]]:
    """What is used of the package ``cryptography``, which only who encrypts needs to have."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise ConfigurationError(
            reason="Encryption needs the package cryptography: pip install 'celery-ckpt[encryption]'."
        ) from error
    return AESGCM, HKDF, SHA256, InvalidTag


def bound(kind: str, *facts: Any) -> bytes:
    """What a value is sealed as: its kind, and everything that says which one it is."""
    return encode([kind, *facts])


def key_of(text: str | None) -> str | None:
    """The id of the key that a sealed text was sealed with."""
    return None if text is None else text.partition(".")[0]
