"""Rekeying: everything that an agent has is decrypted with any key and encrypted with the first one.

A process that works for an agent caches its messages as they were encrypted, and would write them so
again. Therefore rekeying takes the agent's lease first, and skips an agent that is in use.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from celery_ckpt.checkpoint import Checkpoint, Entry
from celery_ckpt.errors import EncryptionKeyMissing, StoreError
from celery_ckpt.event_log import LogEntry
from celery_ckpt.records import AgentContents
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encrypted.checkpoints import EncryptedCheckpoints
from celery_ckpt.stores.encrypted.cipher import Cipher
from celery_ckpt.stores.encrypted.event_log import EncryptedEventLog, has_texts
from celery_ckpt.stores.encrypted.records import EncryptedRecords, distinct
from celery_ckpt.stores.encryption_tag import (
    encrypted_text,
    text_of_checkpoint,
    text_of_entry,
    text_of_run,
    text_of_step,
    texts_of_run,
)

_OWNER = "rekey"
_LEASE_SECONDS = 60.0
#: How often to try if another write, such as a new run, comes between reading and writing.
_TRIES = 5


class Rekeyed(NamedTuple):
    """How much of an agent was not encrypted with the first key."""

    checkpoints: int = 0
    steps: int = 0
    runs: int = 0

    @property
    def is_any(self) -> bool:
        """True if there was anything to encrypt."""
        return any(self)


class Rekeying:
    """Encrypts and decrypts everything that an agent has."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher, self._records = cipher, EncryptedRecords(cipher)
        self._log = EncryptedEventLog(cipher)

    def rekey(
        self, store: CheckpointStore, agent_id: str, from_plaintext: bool, dry_run: bool
    ) -> Rekeyed:
        """Encrypt an agent with the first key; see ``EncryptedStore.rekey``. ``store`` is wrapped."""
        found = Rekeyed()

        def change(stored: AgentContents) -> AgentContents | None:
            nonlocal found
            found = self._not_of_first_key(stored)
            plain = self.decrypt(agent_id, stored, from_plaintext)  # in a dry run too, for its errors
            is_any = found.is_any or any(map(self._is_foreign, stored.log))
            return self.encrypt(agent_id, plain) if is_any and not dry_run else None

        lease = None if dry_run else store.acquire(agent_id, _OWNER, _LEASE_SECONDS)
        try:
            is_done = any(store.rewrite(agent_id, change, lease) for _ in range(_TRIES))
        finally:
            with suppress(StoreError):  # otherwise the lease expires
                if lease is not None:
                    store.release(lease)
        if not is_done:
            reason = f"Agent {agent_id!r} was changed during each of {_TRIES} tries. Try again later."
            raise StoreError(reason=reason)
        return found

    def _not_of_first_key(self, stored: AgentContents) -> Rekeyed:
        beginning = f"{self._cipher.key_id}."

        def is_foreign(texts: Iterable[str | None]) -> bool:
            return any(text is None or not text.startswith(beginning) for text in texts)

        return Rekeyed(
            sum(is_foreign(_texts_of_checkpoint(each)) for each in stored.checkpoints),
            sum(is_foreign([text_of_step(step)]) for step in stored.steps),
            sum(is_foreign(texts_of_run(run).values()) for run in stored.runs),
        )

    def _is_foreign(self, entry: LogEntry) -> bool:
        text = text_of_entry(entry)
        is_plain = text is None and has_texts(entry)
        return is_plain or (text is not None and not text.startswith(f"{self._cipher.key_id}."))

    def decrypt(
        self, agent_id: str, stored: AgentContents, from_plaintext: bool = False
    ) -> AgentContents:
        """Decrypt everything. With ``from_plaintext``, plain records are kept as they are.

        Entries of the event log that cannot be decrypted are left out.
        """
        checkpoints, records = EncryptedCheckpoints(self._cipher), self._records
        shared = {
            each.agent_id: checkpoints.conversations(each.agent_id) for each in stored.checkpoints
        }
        return AgentContents(
            [
                each
                if from_plaintext and text_of_checkpoint(each) is None
                else checkpoints.decrypt(each, shared[each.agent_id])
                for each in stored.checkpoints
            ],
            distinct(
                step if from_plaintext and text_of_step(step) is None else records.decrypt_step(step)
                for step in stored.steps
            ),
            [
                run if from_plaintext and text_of_run(run) is None else records.decrypt_run(run)
                for run in stored.runs
            ],
            self._decrypted_log(agent_id, stored.log),
        )

    def _decrypted_log(self, agent_id: str, log: list[LogEntry]) -> list[LogEntry]:
        found = []
        for entry in log:
            with suppress(EncryptionKeyMissing):
                found += self._log.decrypt(agent_id, [entry], from_plaintext=True)
        return [entry for entry in found if entry.kind != "damaged"]

    def encrypt(self, agent_id: str, plain: AgentContents) -> AgentContents:
        """Encrypt everything with the first key."""
        # Not the object that has decrypted them: it caches how each message was encrypted.
        checkpoints = EncryptedCheckpoints(self._cipher)
        return AgentContents(
            [checkpoints.encrypt(each) for each in plain.checkpoints],
            [self._records.encrypt_step(step) for step in plain.steps],
            [self._records.encrypt_run(run) for run in plain.runs],
            self._log.encrypt(agent_id, plain.log),
        )


def _texts_of_checkpoint(checkpoint: Checkpoint) -> set[str | None]:
    own = checkpoint.__dict__
    entry: Entry | None = own["entry"]
    messages = [*own["conversation"], *(entry.conversation if entry else ())]
    texts = {encrypted_text(message.json_object) for message in messages}
    metadata = own["metadata"]
    return {encrypted_text(own["state"]), *texts, *({encrypted_text(metadata)} if metadata else ())}
