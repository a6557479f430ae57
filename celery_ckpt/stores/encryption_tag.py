"""The tag of encrypted values, and the check that keeps them from being returned as data.

An ``EncryptedStore`` replaces a value by ``{TAG: text}``, and a text by ``TEXT_TAG`` and the encrypted
text. The store inside it (``reads_encrypted``) returns such records as they are stored. Any other store
raises ``EncryptionKeyMissing``: the functions ``plain_*`` check what a method is about to return.

A body may keep anything in its state, and a tool may return anything, so a plain value can look like
an encrypted one. A record counts as encrypted only if a part that no body chooses is encrypted too:
the first message of a checkpoint, the empty name of a step, the envelope of a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import system_clock
from celery_ckpt.errors import EncryptionKeyMissing, StoreError
from celery_ckpt.event_log import LogEntry
from celery_ckpt.messages import Message
from celery_ckpt.records import (
    TEXT_TAG,
    CheckpointInfo,
    RunOutline,
    RunRecord,
    RunStatus,
    StartResult,
    Step,
)
from celery_ckpt.store import CheckpointStore

#: The key under which the encrypted text of a value is stored.
TAG = "ckpt:encrypted"
#: How much of a key's id an error shows. The stored id may be forged.
_SHOWN = 32
#: How an encrypted envelope, and an empty one, begin as JSON.
_ENCRYPTED, _EMPTY = f'{{"{TAG}":"'.encode(), b"{}"


# -- which records are encrypted ---------------------------------------------------------------------


def encrypted_text(value: Any) -> str | None:
    """Return the encrypted text in a value, or ``None`` if the value is plain."""
    text = value.get(TAG) if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def text_of_checkpoint(checkpoint: Checkpoint) -> str | None:
    """Return the encrypted text of a checkpoint's state, or ``None`` if the checkpoint is plain."""
    text = encrypted_text(checkpoint.__dict__["state"])
    first = next(iter(checkpoint.__dict__["conversation"]), None) if text is not None else None
    return text if first is None or encrypted_text(first.json_object) is not None else None


def text_of_step(step: Step) -> str | None:
    """Return the encrypted text of a step, or ``None`` if it is plain. A plain step has a name."""
    return None if step.name else encrypted_text(step.__dict__["value"])


def texts_of_run(run: RunRecord) -> dict[str, str | None]:
    """Return the encrypted texts of a run's record by field; ``None`` for a plain field."""
    own, texts = run.__dict__, dict[str, str | None]()
    if own["envelope"]:
        texts["envelope"] = encrypted_text(own["envelope"])
    if has_result(run):
        texts["result"] = encrypted_text(own["result"])
    if run.error is not None:
        has_tag = run.error.startswith(TEXT_TAG)
        texts["error"] = run.error.removeprefix(TEXT_TAG) if has_tag else None
    return texts


def text_of_run(run: RunRecord) -> str | None:
    """Return an encrypted text of a run's record, or ``None`` if the record is plain.

    The envelope decides if there is one: a result, or the text of an error, may look like anything.
    """
    texts = texts_of_run(run)
    return texts.get("envelope", next(filter(None, texts.values()), None))


def key_of_run(run: RunRecord) -> str | None:
    """Return the id of the key that a run's record is encrypted with, or ``None`` if it is plain."""
    text = text_of_run(run)
    return None if text is None else text.partition(".")[0][:_SHOWN]


def key_of_outline(run: RunOutline, envelope: bytes) -> str | None:
    """Return the same for an outline, given the first 64 bytes of the envelope as JSON."""
    if envelope.startswith(_EMPTY):
        text = run.error or ""
        is_encrypted, text = text.startswith(TEXT_TAG), text.removeprefix(TEXT_TAG)
    else:
        is_encrypted = envelope.startswith(_ENCRYPTED)
        text = envelope.removeprefix(_ENCRYPTED).decode(errors="replace")
    return text.partition(".")[0][:_SHOWN] if is_encrypted else None


def text_of_entry(entry: LogEntry) -> str | None:
    """Return an encrypted text of an entry of an event log, or ``None`` if the entry is plain."""
    calling = entry.data.get("calling") if entry.kind == "ended" else None
    name = calling.get("name") if isinstance(calling, dict) else None
    is_encrypted = isinstance(name, str) and name.startswith(TEXT_TAG)
    return entry.encrypted or (name.removeprefix(TEXT_TAG) if is_encrypted and name else None)


def has_result(run: RunRecord) -> bool:
    """Return True if the run has a result. ``None`` is one too, if the run succeeded."""
    return run.status is RunStatus.SUCCEEDED or run.__dict__["result"] is not None


# -- what a store without keys returns ---------------------------------------------------------------


def refuse_encrypted_checkpoint(checkpoint: Checkpoint) -> None:
    """Raise ``EncryptionKeyMissing`` if a checkpoint is encrypted."""
    if TAG in checkpoint.__dict__["state"]:
        _refuse(checkpoint.agent_id, f"Checkpoint {checkpoint.id}", text_of_checkpoint(checkpoint))


def are_encrypted(messages: list[Message]) -> bool:
    """Return True if all these messages look encrypted."""
    return all(encrypted_text(message.json_object) is not None for message in messages)


def plain_history(
    store: CheckpointStore, agent_id: str, history: list[CheckpointInfo]
) -> list[CheckpointInfo]:
    """Return a history, or raise ``EncryptionKeyMissing``."""
    if not store.reads_encrypted:
        for info in history:
            _refuse(agent_id, f"Checkpoint {info.id}", encrypted_text(info.__dict__["metadata"]))
    return history


def plain_steps(store: CheckpointStore, steps: list[Step]) -> list[Step]:
    """Return some steps, or raise ``EncryptionKeyMissing``."""
    if not store.reads_encrypted:
        for step in steps:
            _refuse(step.agent_id, f"A step of run {step.run_id!r}", text_of_step(step))
    return steps


def plain_run(store: CheckpointStore, run: RunRecord | None) -> RunRecord | None:
    """Return a run's record, or raise ``EncryptionKeyMissing``."""
    if run is not None:
        _refuse_runs(store, (run,))
    return run


def plain_runs(store: CheckpointStore, runs: list[RunRecord]) -> list[RunRecord]:
    """Return some runs' records, or raise ``EncryptionKeyMissing``."""
    _refuse_runs(store, runs)
    return runs


def plain_outlines(
    store: CheckpointStore, runs: Iterable[tuple[RunOutline, str | None]]
) -> list[RunOutline]:
    """Return the outlines of runs, or raise ``EncryptionKeyMissing``.

    Each comes with the id of the key that its record is encrypted with, or ``None``.
    """
    found = []
    for run, key_id in runs:
        if not store.reads_encrypted:
            _refuse(run.agent_id, f"The record of run {run.run_id!r}", key_id)
        found.append(run)
    return found


def plain_log(store: CheckpointStore, agent_id: str, log: list[LogEntry]) -> list[LogEntry]:
    """Return entries of an event log, or raise ``EncryptionKeyMissing``."""
    if not store.reads_encrypted:
        for entry in log:
            _refuse(agent_id, f"Entry {entry.cursor} of the event log", text_of_entry(entry))
    return log


def plain_start(store: CheckpointStore, start: StartResult) -> StartResult:
    """Return the result of a start, or undo the start and raise ``EncryptionKeyMissing``."""
    try:
        _refuse_runs(store, (start.run, start.next) if start.next else (start.run,))
    except EncryptionKeyMissing:
        undo_start(store, start)
        raise
    return start


def undo_start(store: CheckpointStore, start: StartResult) -> None:
    """Release the lease of an attempt that cannot begin in this process. Another worker may begin it.

    The attempt does not count as stalled.
    """
    if start.lease is not None:
        queued = start.run.model_copy(update={"status": RunStatus.QUEUED})
        with suppress(StoreError):  # otherwise the lease expires
            if start.run.status.is_final:
                store.release(start.lease)
            else:
                store.release(start.lease, run=queued, **_noted_end(store, start.run))


def _noted_end(store: CheckpointStore, run: RunRecord) -> dict[str, Any]:
    """Return the parameter that notes the end of an attempt, for a store that has an event log."""
    data = {"run_id": run.run_id, "attempt": run.attempts, "how": "put_back"}
    return {"log": [LogEntry("ended", system_clock.now(), data)]} if "log" in store.features else {}


def _refuse_runs(store: CheckpointStore, runs: Iterable[RunRecord]) -> None:
    if not store.reads_encrypted:
        for run in runs:
            _refuse(run.agent_id, f"The record of run {run.run_id!r}", text_of_run(run))


def _refuse(agent_id: str, what: str, text: str | None) -> None:
    if text is not None:
        key_id = text.partition(".")[0][:_SHOWN]
        raise EncryptionKeyMissing(what=what, agent_id=agent_id, key_id=key_id)
