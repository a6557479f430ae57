"""Entries of event logs, encrypted and decrypted.

    name, error and why          encrypted together, bound to the kind and the time of the entry
    the data of a live entry     encrypted as a whole, bound to the same
    the name of a current call   encrypted by itself, because the store notes it if its attempt is lost

Kinds, numbers, times, and the ids and iterations of checkpoints stay readable. An entry that is not
what was encrypted there becomes one of the kind ``damaged``: no promise depends on the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from celery_ckpt.errors import EncryptionKeyMissing, NotEncrypted
from celery_ckpt.event_log import LogEntry, Part, milliseconds
from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import TEXT_TAG, CurrentCall
from celery_ckpt.stores.encrypted.cipher import Altered, Cipher, UnknownKey, binding

_TEXTS = ("name", "error", "why")


class EncryptedEventLog:
    """Encrypts and decrypts entries of event logs, and current calls."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    # -- encryption ----------------------------------------------------------------------------------

    def encrypt(self, agent_id: str, log: Iterable[LogEntry]) -> list[LogEntry]:
        """Return the entries that the wrapped store keeps."""
        return [self._encrypted(agent_id, entry) for entry in log]

    def _encrypted(self, agent_id: str, entry: LogEntry) -> LogEntry:
        if entry.kind == "checkpoint":
            return entry
        hidden, shown = entry.data, None
        if entry.part is not Part.LIVE:
            hidden = {name: entry.data[name] for name in _TEXTS if name in entry.data}
            shown = {name: value for name, value in entry.data.items() if name not in hidden}
            if calling := entry.data.get("calling"):
                shown["calling"] = {**calling, "name": self._encrypt_name(agent_id, calling["name"])}
        if hidden == {} and shown is not None:
            return entry._replace(data=shown)
        text = self._cipher.encrypt(agent_id, encode(hidden), _place(agent_id, entry))
        return entry._replace(data=shown, encrypted=text)

    def encrypt_call(self, agent_id: str, call: CurrentCall | None) -> CurrentCall | None:
        """Return the current call that the wrapped store keeps."""
        if call is None:
            return None
        return call.model_copy(update={"name": self._encrypt_name(agent_id, call.name)})

    def _encrypt_name(self, agent_id: str, name: str) -> str:
        return TEXT_TAG + self._cipher.encrypt(agent_id, encode(name), binding("call", agent_id))

    # -- decryption ----------------------------------------------------------------------------------

    def decrypt(
        self, agent_id: str, log: Sequence[LogEntry], from_plaintext: bool = False
    ) -> list[LogEntry]:
        """Return the entries that were encrypted. With ``from_plaintext``, plain texts are kept.

        Raises:
            EncryptionKeyMissing, NotEncrypted: one is encrypted with another key, or not at all.
        """
        return [self._decrypted(agent_id, entry, from_plaintext) for entry in log]

    def _decrypted(self, agent_id: str, entry: LogEntry, from_plaintext: bool) -> LogEntry:
        what = f"Entry {entry.cursor} of the event log"
        try:
            if entry.encrypted:
                text = self._cipher.decrypt(agent_id, entry.encrypted, _place(agent_id, entry))
                hidden = decode(text)
                data = hidden if entry.part is Part.LIVE else {**entry.data, **hidden}
                entry = entry._replace(data=data, encrypted="")
            elif not from_plaintext and has_texts(entry):
                raise NotEncrypted(what=what, agent_id=agent_id)
            calling = entry.data.get("calling") if entry.kind == "ended" else None
            if not calling:
                return entry
            name = self._decrypt_name(agent_id, calling["name"])
            return entry._replace(data={**entry.data, "calling": {**calling, "name": name}})
        except UnknownKey as unknown:
            raise EncryptionKeyMissing(what=what, agent_id=agent_id, key_id=unknown.key_id) from None
        except (Altered, ValueError, TypeError, KeyError, AttributeError):
            return LogEntry("damaged", entry.at, {}, entry.cursor)

    def decrypt_call(self, agent_id: str, call: CurrentCall | None) -> CurrentCall | None:
        """Return the current call that was encrypted; ``None`` if it cannot be decrypted."""
        try:
            return call and call.model_copy(update={"name": self._decrypt_name(agent_id, call.name)})
        except (Altered, UnknownKey, ValueError):
            return None

    def _decrypt_name(self, agent_id: str, name: str) -> Any:
        if not name.startswith(TEXT_TAG):
            return name  # of a call before the store was encrypted
        text = name.removeprefix(TEXT_TAG)
        return decode(self._cipher.decrypt(agent_id, text, binding("call", agent_id)))


def has_texts(entry: LogEntry) -> bool:
    """Return True if an entry has texts that should be encrypted, in ``data``."""
    if entry.part is Part.LIVE:
        return entry.kind not in ("checkpoint", "gap", "damaged")
    return any(name in entry.data for name in _TEXTS)


def _place(agent_id: str, entry: LogEntry) -> bytes:
    return binding("entry", agent_id, entry.kind, milliseconds(entry.at))
