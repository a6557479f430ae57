"""Steps and run records, encrypted and decrypted.

step    key: a pseudonym of its key; value: key, name, value and usage, bound to this step
run     envelope, result and error, each bound to this run and field; the rest stays readable for stores
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_ckpt.errors import EncryptionKeyMissing, NotEncrypted
from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import TEXT_TAG, RunRecord, Step
from celery_ckpt.stores.encoding import damaged
from celery_ckpt.stores.encrypted.cipher import Altered, Cipher, UnknownKey, binding
from celery_ckpt.stores.encryption_tag import TAG, encrypted_text, has_result, texts_of_run
from celery_ckpt.usage import Usage


class EncryptedRecords:
    """Encrypts and decrypts steps and run records."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    # -- steps ---------------------------------------------------------------------------------------

    def encrypt_step(self, step: Step) -> Step:
        """Return the step that the wrapped store keeps."""
        # The key contains the fingerprint of the arguments, from which short ones could be guessed.
        key = self._cipher.pseudonym(step.agent_id, f"{step.run_id} {step.key}")
        blank = step.model_copy(update={"key": key, "name": "", "value": None, "usage": Usage()})
        used = [step.usage.to_json()] if step.usage else []
        content = encode([step.key, step.name, step.value, *used])
        text = self._cipher.encrypt(step.agent_id, content, _step_binding(blank))
        return blank.model_copy(update={"value": {TAG: text}})

    def decrypt_step(self, encrypted: Step) -> Step:
        """Return the step that was encrypted.

        Raises:
            StoreError: it is not what was encrypted there.
            EncryptionKeyMissing, NotEncrypted: it is encrypted with another key, or not at all.
        """
        what, text = f"A step of run {encrypted.run_id!r}", encrypted_text(encrypted.value)
        content = self._decrypt(encrypted, what, text, _step_binding(encrypted))
        try:
            key, name, value, *used = content
            usage = Usage.from_json(used[0]) if used else Usage()
            plain = {"key": key, "name": name, "value": value, "usage": usage}
            return encrypted.model_copy(update=plain)
        except (ValueError, TypeError) as error:
            raise damaged(f"{what} of agent {encrypted.agent_id!r}", error) from error

    # -- runs ----------------------------------------------------------------------------------------

    def encrypt_run(self, run: RunRecord) -> RunRecord:
        """Return the run record that the wrapped store keeps."""
        own, changes = run.__dict__, dict[str, Any]()
        if own["envelope"]:
            changes["envelope"] = {TAG: self._encrypt_field(run, "envelope")}
        if has_result(run):
            changes["result"] = {TAG: self._encrypt_field(run, "result")}
        if run.error is not None:
            changes["error"] = TEXT_TAG + self._encrypt_field(run, "error")
        return run.model_copy(update=changes) if changes else run

    def _encrypt_field(self, run: RunRecord, field: str) -> str:
        place = _field_binding(run, field)
        return self._cipher.encrypt(run.agent_id, encode(run.__dict__[field]), place)

    def decrypt_run(self, encrypted: RunRecord) -> RunRecord:
        """Return the run record that was encrypted. Raises what ``decrypt_step`` does."""
        what = f"The record of run {encrypted.run_id!r}"
        changes = {
            field: self._decrypt(encrypted, what, text, _field_binding(encrypted, field))
            for field, text in texts_of_run(encrypted).items()
        }
        return encrypted.model_copy(update=changes) if changes else encrypted

    def decrypt_error(self, agent_id: str, run_id: str, error: str | None) -> str | None:
        """Return the error of a run whose outline was read. Raises what ``decrypt_step`` does."""
        if error is None:
            return None
        text = error.removeprefix(TEXT_TAG) if error.startswith(TEXT_TAG) else None
        outline = RunRecord.model_construct(agent_id=agent_id, run_id=run_id)
        what = f"The record of run {run_id!r}"
        return str(self._decrypt(outline, what, text, _field_binding(outline, "error")))

    def _decrypt(self, record: Step | RunRecord, what: str, text: str | None, place: bytes) -> Any:
        agent_id = record.agent_id
        if text is None:
            raise NotEncrypted(what=what, agent_id=agent_id)
        try:
            return decode(self._cipher.decrypt(agent_id, text, place))
        except UnknownKey as unknown:
            raise EncryptionKeyMissing(what=what, agent_id=agent_id, key_id=unknown.key_id) from None
        except Altered as error:
            raise damaged(f"{what} of agent {agent_id!r}", error) from error


def distinct(decrypted: Iterable[Step]) -> list[Step]:
    """Return each step once. Encrypted under two keys, a step has two pseudonyms; the first counts."""
    found: dict[tuple[str, str], Step] = {}
    for step in decrypted:
        found.setdefault((step.run_id, step.key), step)
    return list(found.values())


def _step_binding(encrypted: Step) -> bytes:
    return binding("step", encrypted.agent_id, encrypted.run_id, encrypted.iteration, encrypted.key)


def _field_binding(run: RunRecord, field: str) -> bytes:
    return binding("run", run.agent_id, run.run_id, field)
