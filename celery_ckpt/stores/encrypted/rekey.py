"""Another key for everything that an agent has: opened with whichever it was sealed, and sealed anew.

Whoever works for an agent keeps its messages as they were sealed, and would write them so again. So the
lease is taken first: an agent at work is left for another time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from celery_ckpt.checkpoint import Checkpoint, Entry
from celery_ckpt.errors import StoreError
from celery_ckpt.records import AgentContents, RunRecord, Step
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encrypted.checkpoints import EncryptedCheckpoints
from celery_ckpt.stores.encrypted.cipher import Seals, key_of
from celery_ckpt.stores.encrypted.records import EncryptedRecords, distinct
from celery_ckpt.stores.encryption_tag import (
    encrypted_text,
    text_of_checkpoint,
    text_of_run,
    text_of_step,
    texts_of_run,
)

_OWNER = "rekey"
_LEASE_SECONDS = 60.0
#: How often to try again if a run was added, say, between reading and writing.
_TRIES = 5


class Rekeyed(NamedTuple):
    """How much of an agent was not sealed with the first key."""

    checkpoints: int = 0
    steps: int = 0
    runs: int = 0

    @property
    def is_any(self) -> bool:
        """Was there anything?"""
        return any(self)


class Rekeying:
    """Seals everything with the first key."""

    def __init__(self, seals: Seals) -> None:
        self._seals, self._records = seals, EncryptedRecords(seals)

    def rekey(
        self, store: CheckpointStore, agent_id: str, from_plaintext: bool, dry_run: bool
    ) -> Rekeyed:
        """See ``SealedStore.rekey``; ``store`` is the one below it."""
        found = Rekeyed()

        def change(sealed: AgentContents) -> AgentContents | None:
            nonlocal found
            found = self._foreign(sealed)
            plain = self.opened(sealed, from_plaintext)  # in a dry run too: it says what is wrong
            return self.sealed(plain) if found.is_any and not dry_run else None

        lease = None if dry_run else store.acquire(agent_id, _OWNER, _LEASE_SECONDS)
        try:
            is_done = any(store.rewrite(agent_id, change, lease) for _ in range(_TRIES))
        finally:
            with suppress(StoreError):  # it ends by itself
                if lease is not None:
                    store.release(lease)
        if not is_done:
            raise StoreError(reason=f"Agent {agent_id!r} was changed again and again. Try later.")
        return found

    def _foreign(self, contents: AgentContents) -> Rekeyed:
        return Rekeyed(
            sum(not self._is_own(_texts_of(one)) for one in contents.checkpoints),
            sum(not self._is_own([text_of_step(step)]) for step in contents.steps),
            sum(not self._is_own(texts_of_run(run).values()) for run in contents.runs),
        )

    def _is_own(self, texts: object) -> bool:
        return all(key_of(text) == self._seals.key_id for text in texts)  # type: ignore[attr-defined]

    def opened(self, sealed: AgentContents, from_plaintext: bool = False) -> AgentContents:
        """The contents that sealed ones stand for; what is plain is taken as it is, if it may be."""
        checkpoints = EncryptedCheckpoints(self._seals)
        spines = {one.agent_id: checkpoints.opening(one.agent_id) for one in sealed.checkpoints}

        def opened(one: Checkpoint) -> Checkpoint:
            is_plain = from_plaintext and text_of_checkpoint(one) is None
            return one if is_plain else checkpoints.opened(one, spines[one.agent_id])

        return AgentContents(
            [opened(one) for one in sealed.checkpoints],
            distinct(self._step(step, from_plaintext) for step in sealed.steps),
            [self._run(run, from_plaintext) for run in sealed.runs],
        )

    def _step(self, step: Step, from_plaintext: bool) -> Step:
        is_plain = from_plaintext and text_of_step(step) is None
        return step if is_plain else self._records.opened_step(step)

    def _run(self, run: RunRecord, from_plaintext: bool) -> RunRecord:
        is_plain = from_plaintext and text_of_run(run) is None
        return run if is_plain else self._records.opened_run(run)

    def sealed(self, plain: AgentContents) -> AgentContents:
        """What stands for some contents."""
        # Not those that have opened them: they remember how each message was sealed.
        checkpoints = EncryptedCheckpoints(self._seals)
        return AgentContents(
            [checkpoints.sealed(one) for one in plain.checkpoints],
            [self._records.step(step) for step in plain.steps],
            [self._records.run(run) for run in plain.runs],
        )


def _texts_of(checkpoint: Checkpoint) -> set[str | None]:
    own = checkpoint.__dict__
    entry: Entry | None = own["entry"]
    messages = [*own["conversation"], *(entry.conversation if entry else ())]
    texts = {encrypted_text(message.json_object) for message in messages}
    metadata = own["metadata"]
    return {encrypted_text(own["state"]), *texts, *({encrypted_text(metadata)} if metadata else ())}
