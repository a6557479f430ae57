"""The cipher: AES-256-GCM, under keys of each agent's own, bound to the place of the value.

    "<id of the key>.<base64 of nonce and ciphertext>"

The keys of an agent are derived (HKDF) from a key in the settings. The nonce is derived from the value
itself (HMAC over its binding and the value), so that equal values encrypt to equal text: a write may be
repeated, and a writer recognises the messages that are already stored. Different values have different
nonces, so no nonce is ever used for two values.
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
from celery_ckpt.stores.encrypted.key_ring import KEY_BYTES, Key

_NONCE_BYTES = 12
_DERIVED_FOR = b"celery_ckpt encryption 1 "
#: For how many agents the derived keys are cached.
_CACHED = 1024


class Altered(Exception):
    """An encrypted value is not what was encrypted at this place with this key."""


class UnknownKey(Exception):
    """A value is encrypted with the key ``key_id``, which is not available."""

    def __init__(self, key_id: str) -> None:
        super().__init__(key_id)
        self.key_id = key_id


class Cipher:
    """Encrypts values of agents with the first of some keys, and decrypts with any of them."""

    def __init__(self, keys: Sequence[Key]) -> None:
        if not keys:
            raise ConfigurationError(reason="There is no encryption key.")
        _cryptography()  # fail when the store is opened, not at the first save
        self._keys = {key.id: key for key in keys}
        #: The id of the key that encrypts.
        self.key_id = keys[0].id
        self._derived = lru_cache(maxsize=_CACHED)(self._derive)

    def _derive(self, key_id: str, agent_id: str) -> DerivedKeys:
        if key_id not in self._keys:
            raise UnknownKey(key_id[:32])  # the stored id may be forged, and of any length
        return DerivedKeys(self._keys[key_id], agent_id)

    def encrypt(self, agent_id: str, value: bytes, binding: bytes) -> str:
        """Encrypt a value of an agent for the place that the binding names."""
        return f"{self.key_id}.{self._derived(self.key_id, agent_id).encrypt(value, binding)}"

    def decrypt(self, agent_id: str, text: str, binding: bytes) -> bytes:
        """Return the value that was encrypted.

        Raises:
            Altered: the text is not what was encrypted there.
            UnknownKey: the value is encrypted with another key.
        """
        key_id, _, ciphertext = text.partition(".")
        return self._derived(key_id, agent_id).decrypt(ciphertext, binding)

    def pseudonym(self, agent_id: str, name: str) -> str:
        """Return a text that replaces a name: the same for the same name, and without its content."""
        return self._derived(self.key_id, agent_id).pseudonym(name)


class DerivedKeys:
    """The keys that are derived from one key for one agent."""

    def __init__(self, key: Key, agent_id: str) -> None:
        aesgcm, hkdf, sha256, self._invalid = _cryptography()
        derived = hkdf(
            algorithm=sha256(), length=3 * KEY_BYTES, salt=None, info=_DERIVED_FOR + agent_id.encode()
        ).derive(key.secret)
        self._cipher = aesgcm(derived[:KEY_BYTES])
        self._nonces = derived[KEY_BYTES : 2 * KEY_BYTES]
        self._names = derived[2 * KEY_BYTES :]

    def encrypt(self, value: bytes, binding: bytes) -> str:
        """Return nonce and ciphertext in base64."""
        # The length separates the binding from the value.
        nonce = hmac.digest(self._nonces, b"%d %b%b" % (len(binding), binding, value), "sha256")
        nonce = nonce[:_NONCE_BYTES]
        return b2a_base64(nonce + self._cipher.encrypt(nonce, value, binding), newline=False).decode()

    def decrypt(self, ciphertext: str, binding: bytes) -> bytes:
        """Return the value. Raises ``Altered``."""
        try:
            raw = a2b_base64(ciphertext.encode("ascii"), strict_mode=True)
            value: bytes = self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], binding)
        except (self._invalid, NotBase64, ValueError):
            raise Altered("it was altered, moved or exchanged after it was encrypted") from None
        return value

    def pseudonym(self, name: str) -> str:
        """Return the text that replaces a name."""
        return hmac.digest(self._names, name.encode(), "sha256").hex()[:32]


def _cryptography() -> tuple[Any, Any, Any, type[Exception]]:
    """Import what is used of ``cryptography``, which only the extra ``encryption`` installs."""
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


def binding(kind: str, *facts: Any) -> bytes:
    """Return the place that a value is bound to: its kind, and the facts that identify it."""
    return encode([kind, *facts])
