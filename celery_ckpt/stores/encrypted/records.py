"""Steps and run records, and the sealed ones that stand for them.

step    key: a name that stands for its key; value: key, name, value and usage, sealed as that of this
        step
run     envelope, result and error, each sealed as that of this run; the rest is for stores to read
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_ckpt.errors import EncryptionKeyMissing, NotEncrypted, StoreError
from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import RunRecord, Step
from celery_ckpt.stores.encoding import damaged
from celery_ckpt.stores.encrypted.cipher import (
    Altered,
    Seals,
    UnknownKey,
    bound,
)
from celery_ckpt.stores.encryption_tag import (
    TAG,
    TEXT_TAG,
    encrypted_text,
    has_result,
    texts_of_run,
)
from celery_ckpt.usage import Usage


class EncryptedRecords:
    """Seals and opens steps and run records."""

    def __init__(self, seals: Seals) -> None:
        self._seals = seals

    # -- steps ---------------------------------------------------------------------------------------

    def step(self, step: Step) -> Step:
        """What stands for a step in the store below."""
        # Its key has the fingerprint of its arguments, from which short ones could be guessed.
        key = self._seals.blinded(step.agent_id, f"{step.run_id} {step.key}")
        blank = step.model_copy(update={"key": key, "name": "", "value": None, "usage": Usage()})
        used = [step.usage.to_json()] if step.usage else []
        content = encode([step.key, step.name, step.value, *used])
        text = self._seals.seal(step.agent_id, content, _bound_step(blank))
        return blank.model_copy(update={"value": {TAG: text}})

    def opened_step(self, sealed: Step) -> Step:
        """The step that a sealed one stands for.

        Raises:
            StoreError: it is not what was sealed there.
            EncryptionKeyMissing, NotEncrypted: see there.
        """
        what = f"A step of run {sealed.run_id!r}"
        content = self._opened(sealed, what, encrypted_text(sealed.value), _bound_step(sealed))
        try:
            key, name, value, *used = content
            usage = Usage.from_json(used[0]) if used else Usage()
            opened = {"key": key, "name": name, "value": value, "usage": usage}
            return sealed.model_copy(update=opened)
        except (ValueError, TypeError) as error:
            raise damaged(f"{what} of agent {sealed.agent_id!r}", error) from error

    # -- runs ----------------------------------------------------------------------------------------

    def run(self, run: RunRecord) -> RunRecord:
        """What stands for a run record in the store below."""
        own, changes = run.__dict__, dict[str, Any]()
        if own["envelope"]:
            changes["envelope"] = {TAG: self._sealed(run, "envelope")}
        if has_result(run):
            changes["result"] = {TAG: self._sealed(run, "result")}
        if run.error is not None:
            changes["error"] = TEXT_TAG + self._sealed(run, "error")
        return run.model_copy(update=changes) if changes else run

    def _sealed(self, run: RunRecord, field: str) -> str:
        return self._seals.seal(run.agent_id, encode(run.__dict__[field]), _bound_run(run, field))

    def opened_run(self, sealed: RunRecord) -> RunRecord:
        """The run record that a sealed one stands for. Raises what ``opened_step`` does."""
        what = f"The record of run {sealed.run_id!r}"
        changes = {
            field: self._opened(sealed, what, text, _bound_run(sealed, field))
            for field, text in texts_of_run(sealed).items()
        }
        return sealed.model_copy(update=changes) if changes else sealed

    def _opened(self, record: Step | RunRecord, what: str, text: str | None, as_what: bytes) -> Any:
        agent_id = record.agent_id
        if text is None:
            raise NotEncrypted(what=what, agent_id=agent_id)
        try:
            return decode(self._seals.open(agent_id, text, as_what))
        except UnknownKey as unknown:
            raise EncryptionKeyMissing(what=what, agent_id=agent_id, key_id=unknown.key_id) from None
        except Altered as error:
            raise _altered(what, agent_id, error) from error


def _altered(what: str, agent_id: str, error: Altered) -> StoreError:
    return damaged(f"{what} of agent {agent_id!r}", error)


def distinct(opened: Iterable[Step]) -> list[Step]:
    """The steps, each once: sealed under two keys one has two names. The one recorded first counts."""
    found: dict[tuple[str, str], Step] = {}
    for step in opened:
        found.setdefault((step.run_id, step.key), step)
    return list(found.values())


def _bound_step(sealed: Step) -> bytes:
    return bound("step", sealed.agent_id, sealed.run_id, sealed.iteration, sealed.key)


def _bound_run(run: RunRecord, field: str) -> bytes:
    return bound("run", run.agent_id, run.run_id, field)
