"""The page on the storage format is enough to decrypt what is encrypted, without the library."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from celery_ckpt import Checkpoint, CheckpointEvent, Conversation, Entry
from celery_ckpt.records import RunStatus
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing import make_checkpoint, make_message, make_run, make_step
from celery_ckpt.usage import Usage

SECRET = bytes(range(32))
AGENT = "weather {eü}"
KEY_ID = hashlib.sha256(b"celery_ckpt key id " + SECRET).hexdigest()[:8]
_INFO = b"celery_ckpt encryption 1 " + AGENT.encode()
_DERIVED = HKDF(algorithm=SHA256(), length=96, salt=None, info=_INFO).derive(SECRET)


USED = Usage.of("m", input_tokens=3)


def line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decrypted(encrypted: dict[str, str], *bound: Any) -> Any:
    """Decrypt an encrypted text by the rules of the page."""
    key_id, _, text = encrypted["ckpt:encrypted"].partition(".")
    assert key_id == KEY_ID
    raw, data = base64.b64decode(text, validate=True), line(list(bound))
    value = AESGCM(_DERIVED[:32]).decrypt(raw[:12], raw[12:], data)
    signed = str(len(data)).encode() + b" " + data + value
    assert raw[:12] == hmac.digest(_DERIVED[32:64], signed, "sha256")[:12]
    return json.loads(value)


def digest(messages: list[Any]) -> str:
    whole = b"".join(line(message.to_dict()) + b"\n" for message in messages)
    return hashlib.sha256(whole).hexdigest() if messages else ""


@pytest.fixture
def stores() -> tuple[MemoryCheckpointStore, EncryptedStore]:
    inner = MemoryCheckpointStore()
    return inner, EncryptedStore(inner, base64.b64encode(SECRET).decode())


def test_a_checkpoint_can_be_decrypted_by_the_documented_format(
    stores: tuple[MemoryCheckpointStore, EncryptedStore],
) -> None:
    inner, store = stores
    conversation = Conversation(7000, [make_message("grüß"), make_message("two")])
    entered = Conversation(messages=[conversation.messages[0], make_message("other")])
    saved = make_checkpoint(
        AGENT,
        conversation,
        3,
        state={"s": 1.5},
        metadata={"m": "x", "pin": "p"},
        run_metadata={"m": "y"},
        run_id="run",
        event=CheckpointEvent.ITERATION,
        after_loop=True,
        usage=USED,
        counted="key",
        entry=Entry(conversation=entered, state={"e": None}, after_loop=True, usage=USED),
    )
    store.save(saved)

    found = inner.load(saved.id)

    assert found is not None
    assert found.entry is not None
    messages, rest = found.conversation.messages, found.entry.conversation.messages[1:]
    plain = [decrypted(message.to_dict(), "message", AGENT) for message in messages]
    assert plain == [message.to_dict() for message in saved.conversation]
    assert decrypted(found.metadata, "metadata", AGENT, saved.id) == saved.metadata
    assert found.metadata["pin"] == "p"
    states = decrypted(
        found.state,
        *("checkpoint", AGENT, saved.id, microseconds(saved), 3, "iteration", "run", found.metadata),
        *(2, digest(messages), 7000, [1, digest(rest), 100_000]),
    )
    used = {"m": {"input_tokens": 3}}
    of_entry = {"after_loop": True, "usage": used}
    resumed_by = {"after_loop": True, "usage": used, "counted": "key", "entry": of_entry}
    assert states == [{"s": 1.5}, {"e": None}, {"run_metadata": {"m": "y"}, **resumed_by}]
    assert (found.entry.state, found.run_metadata, found.after_loop) == ({}, None, False)
    assert (found.usage, found.counted) == (Usage(), None)
    assert (found.entry.after_loop, found.entry.usage) == (False, Usage())


def microseconds(checkpoint: Checkpoint) -> int:
    time = checkpoint.created_at
    return int(time.replace(microsecond=0).timestamp()) * 1_000_000 + time.microsecond


def test_steps_and_runs_can_be_decrypted_by_the_documented_format(
    stores: tuple[MemoryCheckpointStore, EncryptedStore],
) -> None:
    inner, store = stores
    said = {"name": "name", "value": {"v": 1}, "iteration": 2, "usage": USED}
    store.record_step(make_step(AGENT, "run", "the key", **said))
    ended = {"status": RunStatus.SUCCEEDED, "envelope": {"e": 1}, "result": None, "error": "why"}
    store.add_run(make_run(AGENT, "run", **ended))

    [step], [run] = inner.steps(AGENT, "run"), inner.runs(AGENT)

    assert step.key == hmac.digest(_DERIVED[64:], b"run the key", "sha256").hex()[:32]
    assert step.name == ""
    content = ["the key", "name", {"v": 1}, {"m": {"input_tokens": 3}}]
    assert decrypted(step.value, "step", AGENT, "run", 2, step.key) == content
    assert step.usage == Usage()
    assert decrypted(run.envelope, "run", AGENT, "run", "envelope") == {"e": 1}
    assert decrypted(run.result, "run", AGENT, "run", "result") is None
    assert run.error is not None
    error = {"ckpt:encrypted": run.error.removeprefix("ckpt:encrypted ")}
    assert decrypted(error, "run", AGENT, "run", "error") == "why"


#: "hello", encrypted by the rules of format 1.
ENCRYPTED_HELLO = (
    "4da4a696.uagiKrKt5XNO8tvIAFYBb6MfJ0/L5O/t1oB02NRhSxdwPsvxvo1xNjj38/QPaZFPUDK6b+y+PiQgTykLtw=="
)


def test_data_encrypted_by_an_earlier_version_can_always_be_decrypted() -> None:
    inner = MemoryCheckpointStore()
    store = EncryptedStore(inner, base64.b64encode(SECRET).decode())
    store.save(make_checkpoint("agent", Conversation(messages=[make_message("hello")])))
    latest = inner.load_latest("agent")
    assert latest is not None
    [message] = latest.conversation.messages
    assert message.to_dict() == {"ckpt:encrypted": ENCRYPTED_HELLO}
