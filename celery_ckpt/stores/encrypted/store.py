"""EncryptedStore: a store around another one, which never sees the content of agents.

What stores, sweeps and the watchdog need stays readable: names of agents, runs and tasks, ids,
iterations, events, counts, times, status, pins and their labels. See ``docs/howto/encrypt.md``.
"""
# ruff: noqa: D102  (CheckpointStore documents these methods)

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

from celery_ckpt.checkpoint import Checkpoint, is_same
from celery_ckpt.errors import (
    AgentNotFound,
    AlreadyExists,
    CheckpointDamaged,
    CheckpointError,
    CheckpointTooLarge,
    StoreError,
)
from celery_ckpt.event_log import LogEntry
from celery_ckpt.records import (
    AgentActivity,
    AgentContents,
    AgentOutline,
    AgentPage,
    Change,
    CheckpointInfo,
    CurrentCall,
    Lease,
    MessagePage,
    RunOutline,
    RunRecord,
    RunStatus,
    StartResult,
    Step,
    shortened,
)
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores import encoding
from celery_ckpt.stores.encrypted.checkpoints import EncryptedCheckpoints
from celery_ckpt.stores.encrypted.cipher import Cipher
from celery_ckpt.stores.encrypted.event_log import EncryptedEventLog
from celery_ckpt.stores.encrypted.key_ring import parse_keys
from celery_ckpt.stores.encrypted.records import EncryptedRecords, distinct
from celery_ckpt.stores.encrypted.rekey import Rekeyed, Rekeying
from celery_ckpt.stores.encryption_tag import undo_start
from celery_ckpt.stores.log.draft import Parts
from celery_ckpt.stores.log.reader import all_readable
from celery_ckpt.stores.wrapper import WrapperStore, given
from celery_ckpt.usage import Usage


class EncryptedStore(WrapperStore):
    """Encrypts what is written to another store, and decrypts what is read from it."""

    def __init__(self, inner: CheckpointStore, keys: str | Iterable[str]) -> None:
        super().__init__(inner)
        inner.reads_encrypted = True
        cipher = Cipher(parse_keys(keys))
        self._checkpoints, self._records = EncryptedCheckpoints(cipher), EncryptedRecords(cipher)
        self._log = EncryptedEventLog(cipher)
        self._rekeying = Rekeying(cipher)

    def _noted(self, agent_id: str, log: Sequence[LogEntry]) -> dict[str, Any]:
        return given(log=self._log.encrypt(agent_id, log))

    # -- checkpoints ---------------------------------------------------------------------------------

    def save(
        self,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        run: RunRecord | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        encrypted, noted = self._checkpoints.encrypt(checkpoint), self._noted(checkpoint.agent_id, log)
        try:
            self.inner.save(encrypted, lease, run=run and self._records.encrypt_run(run), **noted)
        except AlreadyExists:
            # Equal values can be written differently, and after a rotation encrypted differently.
            stored = self.load(checkpoint.id)
            if stored is None or not is_same(stored, checkpoint):
                raise
        except CheckpointTooLarge as error:
            raise _too_large(checkpoint, error) from None

    def load_latest(self, agent_id: str) -> Checkpoint | None:
        found = self.inner.load_latest(agent_id)
        return found and self._checkpoints.decrypt(found)

    def load(self, checkpoint_id: str) -> Checkpoint | None:
        found = self.inner.load(checkpoint_id)
        return found and self._checkpoints.decrypt(found)

    def list(self, agent_id: str, *, limit: int | None = None) -> builtins.list[Checkpoint]:
        damage: CheckpointDamaged | None = None
        try:
            found = self.inner.list(agent_id, limit=limit)
        except CheckpointDamaged as error:
            found, damage = builtins.list(error.readable), error
        shared = self._checkpoints.conversations(agent_id)
        return all_readable(found, lambda each: self._checkpoints.decrypt(each, shared), damage)

    def history(
        self, agent_id: str, *, limit: int | None = None, before: int | None = None
    ) -> builtins.list[CheckpointInfo]:
        found = self.inner.history(agent_id, limit=limit, before=before)
        return [self._checkpoints.decrypt_info(agent_id, info) for info in found]

    def messages(
        self, checkpoint_id: str, start: int = 0, stop: int | None = None
    ) -> MessagePage | None:
        found = self.inner.messages(checkpoint_id, start, stop)
        return found and self._checkpoints.decrypt_page(found)

    def page(
        self,
        status: RunStatus | str | None = None,
        *,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> AgentPage:
        found = self.inner.page(status, prefix=prefix, limit=limit, after=after)
        agents, cursors, unreadable = [], [], dict(found.unreadable)
        for row, cursor in zip(found.agents, found.cursors, strict=True):
            try:
                agents.append(self._decrypted(row))
                cursors.append(cursor)
            except StoreError as error:
                unreadable[row.agent_id] = error
        return AgentPage(agents, found.after, cursors, unreadable)

    def outline(self, agent_id: str) -> AgentOutline | None:
        found = self.inner.outline(agent_id)
        return found and self._decrypted(found)

    def _decrypted(self, row: AgentOutline) -> AgentOutline:
        call, error = self._log.decrypt_call(row.agent_id, row.call), row.error
        if error is not None and row.run_id is not None:
            error = shortened(self._records.decrypt_error(row.agent_id, row.run_id, error))
        return row.model_copy(update={"call": call, "error": error})

    # -- steps ---------------------------------------------------------------------------------------

    def record_step(
        self,
        step: Step,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> None:
        encrypted, noted = self._records.encrypt_step(step), self._noted(step.agent_id, log)
        try:
            self.inner.record_step(encrypted, lease, paid=paid, **noted)
        except AlreadyExists:
            stored = self.steps(step.agent_id, step.run_id)
            if not any(encoding.is_same(one, step) for one in stored):
                what = f"Step {step.key!r}"
                raise AlreadyExists(what=what, agent_id=step.agent_id) from None
        except CheckpointTooLarge as error:
            raise CheckpointTooLarge(**{**error.__dict__, "what": f"Step {step.key!r}"}) from None

    def record_and_save(
        self,
        step: Step,
        checkpoint: Checkpoint,
        lease: Lease | None = None,
        *,
        paid: Usage | None = None,
        log: Sequence[LogEntry] = (),
    ) -> CheckpointError | None:
        both = self._records.encrypt_step(step), self._checkpoints.encrypt(checkpoint)
        noted = self._noted(step.agent_id, log)
        refusal: CheckpointError | None
        try:
            refusal = self.inner.record_and_save(*both, lease, paid=paid, **noted)
        except (AlreadyExists, CheckpointTooLarge) as error:
            refusal = error
        if isinstance(refusal, AlreadyExists | CheckpointTooLarge):
            # By two calls of this store, which compare and explain what the wrapped one cannot read.
            return super().record_and_save(step, checkpoint, lease, paid=paid, log=log)
        return refusal

    def steps(self, agent_id: str, run_id: str) -> builtins.list[Step]:
        return distinct(map(self._records.decrypt_step, self.inner.steps(agent_id, run_id)))

    # -- runs ----------------------------------------------------------------------------------------

    def release(
        self,
        lease: Lease,
        *,
        run: RunRecord | None = None,
        due_in: float | None = None,
        log: Sequence[LogEntry] = (),
    ) -> bool:
        encrypted, noted = run and self._records.encrypt_run(run), self._noted(lease.agent_id, log)
        return self.inner.release(lease, run=encrypted, due_in=due_in, **noted)

    def renew(self, lease: Lease, ttl: float, *, call: CurrentCall | None = None) -> Lease:
        encrypted = self._log.encrypt_call(lease.agent_id, call)
        return self.inner.renew(lease, ttl, **given(call=encrypted))

    def renew_many(
        self, leases: Sequence[Lease], ttl: float, *, calls: Sequence[CurrentCall | None] = ()
    ) -> builtins.list[Lease | StoreError]:
        pairs = zip(leases, calls, strict=False)
        encrypted = [self._log.encrypt_call(lease.agent_id, call) for lease, call in pairs]
        return self.inner.renew_many(leases, ttl, **given(calls=encrypted))

    def add_run(self, run: RunRecord, *, due_in: float | None = None) -> bool:
        if self.inner.add_run(self._records.encrypt_run(run), due_in=due_in):
            return True
        stored = self.run(run.agent_id, run.run_id)
        return stored is not None and encoding.is_same(stored, run)

    def update_run(
        self, run: RunRecord, lease: Lease | None = None, *, log: Sequence[LogEntry] = ()
    ) -> None:
        noted = self._noted(run.agent_id, log)
        self.inner.update_run(self._records.encrypt_run(run), lease, **noted)

    def run(self, agent_id: str, run_id: str) -> RunRecord | None:
        found = self.inner.run(agent_id, run_id)
        return found and self._records.decrypt_run(found)

    def runs(self, agent_id: str) -> builtins.list[RunRecord]:
        return [self._records.decrypt_run(run) for run in self.inner.runs(agent_id)]

    def last_run(self, agent_id: str) -> RunRecord | None:
        found = self.inner.last_run(agent_id)
        return found and self._records.decrypt_run(found)

    def run_outlines(
        self, agent_id: str, *, limit: int | None = None, before: str | None = None
    ) -> builtins.list[RunOutline]:
        found = self.inner.run_outlines(agent_id, limit=limit, before=before)
        return [
            run.model_copy(
                update={"error": self._records.decrypt_error(agent_id, run.run_id, run.error)}
            )
            for run in found
        ]

    def start_run(
        self,
        run: RunRecord,
        owner: str,
        ttl: float,
        *,
        over: Lease | None = None,
        recorded: bool = False,
        worker: str = "",
    ) -> StartResult:
        encrypted, named = self._records.encrypt_run(run), given(worker=worker)
        start = self.inner.start_run(encrypted, owner, ttl, over=over, recorded=recorded, **named)
        try:
            decrypted = {
                "run": self._records.decrypt_run(start.run),
                "next": start.next and self._records.decrypt_run(start.next),
            }
            return start.model_copy(update=decrypted)
        except StoreError:
            undo_start(self.inner, start)
            raise

    def settle_run(self, run: RunRecord, lease: Lease | None = None) -> RunRecord | None:
        following = self.inner.settle_run(self._records.encrypt_run(run), lease)
        return following and self._records.decrypt_run(following)

    def pass_turn(self, agent_id: str, run_id: str, waited: float) -> RunRecord | None:
        following = self.inner.pass_turn(agent_id, run_id, waited)
        return following and self._records.decrypt_run(following)

    def activity(self, agent_id: str) -> AgentActivity:
        found = self.inner.activity(agent_id)
        runs = [self._records.decrypt_run(run) for run in found.open]
        call = self._log.decrypt_call(agent_id, found.call)
        return found.model_copy(update={"open": runs, "call": call})

    def cancel_run(
        self, agent_id: str, run_id: str, owner: str, ttl: float, *, log: Sequence[LogEntry] = ()
    ) -> Lease | None:
        noted = self._noted(agent_id, log)
        return self.inner.cancel_run(agent_id, run_id, owner, ttl, **noted)

    # -- the event log -------------------------------------------------------------------------------

    def event_log(
        self, agent_id: str, *, after: int | None = None, limit: int | None = None
    ) -> builtins.list[LogEntry]:
        return self._log.decrypt(agent_id, self.inner.event_log(agent_id, after=after, limit=limit))

    def note(self, agent_id: str, log: Sequence[LogEntry], *, copied: bool = False) -> bool:
        encrypted = self._log.encrypt(agent_id, log)
        return self.inner.note(agent_id, encrypted, **given(copied=copied))

    def stream(self, lease: Lease, log: Sequence[LogEntry]) -> bool:
        return self.inner.stream(lease, self._log.encrypt(lease.agent_id, log))

    # -- upkeep --------------------------------------------------------------------------------------

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:

        def change_encrypted(stored: AgentContents) -> AgentContents | None:
            after = change(self._rekeying.decrypt(agent_id, stored))
            return after and self._rekeying.encrypt(agent_id, after)

        return self.inner.rewrite(agent_id, change_encrypted, lease)

    def rekey(self, agent_id: str, *, from_plaintext: bool = False, dry_run: bool = False) -> Rekeyed:
        """Encrypt everything that an agent has with the first key.

        With ``dry_run``, nothing is written and no lease is taken.

        Returns:
            How much of the agent was not encrypted with that key.

        Raises:
            AgentNotFound: the agent does not exist.
            LeaseHeld: the agent is in use.
            NotEncrypted: something is plain text, unless ``from_plaintext``.
            FeatureMissing: the wrapped store does not have the feature "rewrite".
        """
        if not self.snapshots([agent_id])[0].seen:
            # Taking its lease would create it.
            raise AgentNotFound(f"There is no agent {agent_id!r} in this store.", agent_id=agent_id)
        return self._rekeying.rekey(self.inner, agent_id, from_plaintext, dry_run)


def _too_large(checkpoint: Checkpoint, error: CheckpointTooLarge) -> CheckpointTooLarge:
    """Return the error with the plain part that is the largest; encrypted, it is a third longer."""
    try:
        Parts(checkpoint).refuse_too_large(checkpoint, 0)
    except CheckpointTooLarge as plain:
        error = CheckpointTooLarge(**{**plain.__dict__, "size": error.size, "limit": error.limit})
    return error
