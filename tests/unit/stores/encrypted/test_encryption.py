"""What is encrypted cannot be read, moved, exchanged, left out or altered, in any store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_ckpt import (
    Checkpoint,
    CheckpointStore,
    Conversation,
    Entry,
    Message,
    SqliteCheckpointStore,
)
from celery_ckpt.errors import (
    AlreadyExists,
    CheckpointDamaged,
    CheckpointTooLarge,
    EncryptionKeyMissing,
    NotEncrypted,
    StoreError,
)
from celery_ckpt.records import RunRecord, RunStatus, Step
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.stores.encryption_tag import TAG
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing import make_checkpoint, make_message, make_run, make_step
from tests.support.encryption import NEW, OLD, OTHER, encrypted, keyless

SECRET = "the swordfish"


def talk(*texts: str) -> Conversation:
    return Conversation(messages=[make_message(text) for text in texts])


def full(agent_id: str = "agent", *texts: str, **fields: Any) -> Checkpoint:
    conversation = talk(*(texts or (f"{SECRET} 1", f"{SECRET} 2")))
    entry = Entry(conversation=talk(f"{SECRET} before"), state={"entered": SECRET})
    given = {"state": {"s": SECRET}, "metadata": {"m": SECRET, "pin": "label"}, "entry": entry}
    return make_checkpoint(agent_id, conversation, 1, **{**given, **fields})


def ended(**fields: Any) -> RunRecord:
    given = {"status": RunStatus.SUCCEEDED, "envelope": {"e": SECRET}, "result": SECRET}
    return make_run("agent", "run", **{**given, "error": SECRET, **fields})


def test_no_agent_data_is_readable_in_the_inner_store(inner: CheckpointStore) -> None:
    store = encrypted(inner)
    checkpoint, step, run = full(), make_step("agent", "run", f"key {SECRET}", value=SECRET), ended()
    store.save(checkpoint)
    store.record_step(step.model_copy(update={"name": SECRET}))
    store.add_run(run)

    below = [*inner.list("agent"), *inner.steps("agent", "run"), *inner.runs("agent")]
    dumped = "".join(each.model_dump_json() for each in [*below, *inner.history("agent")])

    assert SECRET not in dumped
    assert store.load_latest("agent") == checkpoint
    assert store.history("agent")[0].metadata == checkpoint.metadata
    assert [s.key for s in store.steps("agent", "run")] == [step.key]
    assert store.runs("agent") == [run]


def test_a_run_is_encrypted_however_it_is_written(inner: CheckpointStore) -> None:
    store = encrypted(inner)
    start = store.start_run(make_run("agent", "run", envelope={"e": SECRET}), "worker", 30)
    assert start.lease is not None
    lease, queued = start.lease, ended(status=RunStatus.QUEUED)
    writes: list[Callable[[], object]] = [
        lambda: store.update_run(queued, lease),
        lambda: store.save(full(), lease, run=queued),
        lambda: store.release(lease, run=queued),
        lambda: store.settle_run(ended()),
    ]
    for write in writes:
        write()
        [run] = inner.runs("agent")
        assert SECRET not in run.model_dump_json()
    assert store.runs("agent")[0].result == SECRET


def test_a_pin_is_readable_in_the_inner_store_and_authenticated(inner: CheckpointStore) -> None:
    store = encrypted(inner)
    store.save(full())
    assert [info.pin for info in inner.history("agent")] == ["label"]
    assert [info.pin for info in store.history("agent")] == ["label"]


@pytest.mark.parametrize("pin", [{"pin": "another"}, {}])
def test_history_detects_a_changed_pin(pin: dict[str, str]) -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner)
    store.save(full())
    whole = below(inner)
    forged(inner, whole.model_copy(update={"metadata": {TAG: whole.metadata[TAG], **pin}}))
    with pytest.raises(CheckpointDamaged, match="its pin is not the one that was encrypted"):
        store.history("agent")


def test_a_save_writes_only_the_new_messages(inner: CheckpointStore) -> None:
    store, growing = encrypted(inner), talk(*(f"message {n}" for n in range(50)))
    written: list[int] = []
    wrapped = inner.save

    def counting(checkpoint: Checkpoint, *args: Any, **options: Any) -> None:
        wrapped(checkpoint, *args, **options)
        written.append(len(checkpoint.conversation))

    inner.save = counting  # type: ignore[method-assign]
    encryptions: list[bytes] = []
    cipher = store._checkpoints._cipher
    encrypt = cipher.encrypt

    def counted(agent_id: str, value: bytes, binding: bytes) -> str:
        encryptions.append(binding)
        return encrypt(agent_id, value, binding)

    cipher.encrypt = counted  # type: ignore[method-assign]
    store.save(make_checkpoint("agent", growing))
    del encryptions[:]
    growing.append(make_message("one more"))
    store.save(make_checkpoint("agent", growing))
    assert len(encryptions) == 2, "the new message and the state"

    growing.extend_to([*growing.messages[:40], make_message("another end")])
    del encryptions[:]
    store.save(make_checkpoint("agent", growing))
    assert len(encryptions) == 2, "the new message and the state"

    loaded = store.load_latest("agent")
    assert loaded is not None
    going_on = loaded.conversation
    going_on.append(make_message("and one"))
    del encryptions[:]
    store.save(make_checkpoint("agent", going_on))
    assert len(encryptions) == 2, "also after a load"
    assert written == [50, 51, 41, 42]


def test_two_conversations_continued_from_one_checkpoint_do_not_mix(inner: CheckpointStore) -> None:
    store = encrypted(inner)
    store.save(make_checkpoint("agent", talk("a", "b")))
    one, other = (store.load_latest("agent").conversation for _ in range(2))  # type: ignore[union-attr]
    one.append(make_message("one"))
    other.append(make_message("other"))
    first, second = make_checkpoint("agent", one), make_checkpoint("agent", other)
    store.save(first)
    store.save(second)

    assert [store.load(c.id) for c in (first, second)] == [first, second]
    assert encrypted(inner).list("agent")[:2] == [second, first]


def test_equal_agents_have_no_equal_ciphertext(inner: CheckpointStore) -> None:
    store = encrypted(inner)
    for agent_id in ("a", "b"):
        store.save(make_checkpoint(agent_id, talk("hello"), state={"n": 1}))
        store.record_step(make_step(agent_id, "run", "key"))
    messages = [inner.load_latest(name).conversation.messages[0] for name in "ab"]  # type: ignore[union-attr]
    steps = [inner.steps(name, "run")[0] for name in "ab"]
    assert messages[0] != messages[1]
    assert steps[0].key != steps[1].key


# -- what somebody with access to the store may try --------------------------------------------------


def forged(inner: CheckpointStore, checkpoint: Checkpoint) -> None:
    """Replace a checkpoint in the store below."""
    inner.remove(checkpoint.agent_id, [checkpoint.id])
    inner.save(checkpoint)


def below(store: CheckpointStore, agent_id: str = "agent") -> Checkpoint:
    found = store.load_latest(agent_id)
    assert found is not None
    return found


def with_messages(checkpoint: Checkpoint, messages: list[Message]) -> Checkpoint:
    entry = None if checkpoint.entry is None else checkpoint.entry
    changed = Conversation(messages=messages)
    return checkpoint.model_copy(update={"conversation": changed, "entry": entry})


FORGERIES: dict[str, Callable[[Checkpoint, Checkpoint], Checkpoint]] = {
    "a message is left out": lambda c, _: with_messages(c, c.conversation.messages[:1]),
    "messages change places": lambda c, _: with_messages(c, c.conversation.messages[::-1]),
    "a message is repeated": lambda c, _: with_messages(c, c.conversation.messages * 2),
    "an older message of the agent": lambda c, o: with_messages(c, o.conversation.messages),
    "another state": lambda c, o: c.model_copy(update={"state": o.state}),
    "another iteration": lambda c, _: c.model_copy(update={"iteration": 7}),
    "another run": lambda c, _: c.model_copy(update={"run_id": "other"}),
    "another event": lambda c, _: c.model_copy(update={"event": "iteration"}),
    "another time": lambda c, o: c.model_copy(update={"created_at": o.created_at.replace(year=2020)}),
    "no metadata": lambda c, _: c.model_copy(update={"metadata": {}}),
    "another's metadata": lambda c, o: c.model_copy(update={"metadata": o.metadata}),
    "another pin": lambda c, _: c.with_metadata("pin", "x"),
    "no entry": lambda c, _: c.model_copy(update={"entry": None}),
    "another entry": lambda c, o: c.model_copy(update={"entry": o.entry}),
    "another limit of tokens": lambda c, _: c.model_copy(
        update={"conversation": Conversation(7, c.conversation.messages)}
    ),
    "a state cut off": lambda c, _: c.model_copy(update={"state": {TAG: c.state[TAG][:-8]}}),
    "a state that is not base64": lambda c, _: c.model_copy(update={"state": {TAG: "old.é"}}),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_tampered_checkpoint_is_refused(how: str) -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner)
    store.save(full("agent", "older 1", "older 2", state={"older": 1}, entry=None))
    older = below(inner)
    store.save(full())
    whole = below(inner)

    forged(inner, FORGERIES[how](whole, older))

    with pytest.raises(CheckpointDamaged, match=rf"{whole.id} of agent 'agent'") as refused:
        store.load_latest("agent")
    assert SECRET not in str(refused.value)
    with pytest.raises(CheckpointDamaged) as damage:
        store.list("agent")
    assert [checkpoint.id for checkpoint in damage.value.readable] == [older.id]


def test_ciphertext_cannot_be_moved_to_another_agent() -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner)
    store.save(full())
    store.record_step(make_step("agent", "run", "key"))
    store.add_run(ended())

    inner.save(below(inner).model_copy(update={"agent_id": "thief", "id": "x"}))
    inner.record_step(inner.steps("agent", "run")[0].model_copy(update={"agent_id": "thief"}))
    inner.add_run(inner.runs("agent")[0].model_copy(update={"agent_id": "thief"}))

    with pytest.raises(CheckpointDamaged):
        store.load_latest("thief")
    with pytest.raises(StoreError, match="A step of run 'run' of agent 'thief' is damaged"):
        store.steps("thief", "run")
    with pytest.raises(StoreError, match="The record of run 'run' of agent 'thief' is damaged"):
        store.runs("thief")


STEPS: dict[str, Callable[[Step, Step], Step]] = {
    "of another run": lambda s, _: s.model_copy(update={"run_id": "other"}),
    "of another iteration": lambda s, _: s.model_copy(update={"iteration": 3}),
    "with another's value": lambda s, o: s.model_copy(update={"value": o.value}),
}


@pytest.mark.parametrize("how", STEPS)
def test_a_tampered_step_is_refused(how: str) -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner)
    for number in (1, 2):
        store.record_step(make_step("agent", "run", f"key {number}", value=number))
    step, other = inner.steps("agent", "run")
    inner.drop_steps("agent", "run")
    changed = STEPS[how](step, other)
    inner.record_step(changed)

    with pytest.raises(StoreError, match="is damaged: it was altered, moved or exchanged"):
        store.steps("agent", changed.run_id)


RUNS: dict[str, dict[str, Any]] = {
    "plain envelope": {"envelope": {"task": "evil"}},
    "plain result": {"result": 1},
    "no result": {"result": None},
    "plain error": {"error": "evil"},
}


@pytest.mark.parametrize("how", RUNS)
def test_plain_text_in_a_run_is_refused(how: str) -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner)
    store.add_run(ended())
    inner.update_run(inner.runs("agent")[0].model_copy(update=RUNS[how]))

    for read in (lambda: store.run("agent", "run"), lambda: store.activity("agent")):
        with pytest.raises(NotEncrypted, match="The record of run 'run' of agent 'agent' is not enc"):
            read()


def test_the_fields_of_a_run_cannot_be_swapped() -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner)
    store.add_run(ended())
    found = inner.runs("agent")[0]
    inner.update_run(found.model_copy(update={"result": found.envelope}))
    with pytest.raises(StoreError, match="altered, moved or exchanged"):
        store.run("agent", "run")


def test_plain_text_is_refused_where_encryption_is_required(inner: CheckpointStore) -> None:
    store = encrypted(inner)
    inner.save(full("plain"))
    inner.record_step(make_step("plain", "run", "key"))
    reads = [
        lambda: store.load_latest("plain"),
        lambda: store.list("plain"),
        lambda: store.history("plain"),
        lambda: store.steps("plain", "run"),
    ]
    for read in reads:
        with pytest.raises(NotEncrypted, match="rekey --from-plaintext"):
            read()


def test_a_plain_message_among_encrypted_ones_is_refused() -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner)
    store.save(full(entry=None))
    whole = below(inner)
    forged(inner, with_messages(whole, [make_message("x"), whole.conversation.messages[1]]))
    with pytest.raises(StoreError):
        store.load_latest("agent")


TEXTS = st.text(max_size=60) | st.from_regex(r"old\.[A-Za-z0-9+/]{0,80}={0,2}", fullmatch=True)


@given(
    st.recursive(TEXTS | st.none() | st.integers(), lambda inner: st.lists(inner, max_size=2)), TEXTS
)
@settings(max_examples=150)
def test_any_injected_data_is_refused(value: Any, text: str) -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner)
    store.save(full(entry=None, metadata={"m": "x"}))
    store.record_step(make_step("agent", "run", "key"))
    store.add_run(ended())
    whole, step, run = below(inner), inner.steps("agent", "run")[0], inner.runs("agent")[0]
    first = whole.conversation.messages[0]
    put = {TAG: value}

    forged(inner, whole.model_copy(update={"state": put}))
    inner.drop_steps("agent", "run")
    inner.record_step(step.model_copy(update={"value": put}))
    inner.update_run(run.model_copy(update={"error": text, "result": put}))
    for read in (store.load_latest, store.list, store.runs, lambda name: store.steps(name, "run")):
        with pytest.raises(StoreError):
            read("agent")

    forged(inner, with_messages(whole, [Message.of(put), first]))
    forged(inner, whole.model_copy(update={"metadata": {TAG: text}}))
    with pytest.raises(StoreError):
        store.history("agent")


# -- keys that are not there, and other ones ---------------------------------------------------------


def test_the_error_names_the_missing_key(inner: CheckpointStore) -> None:
    encrypted(inner, NEW).save(full())
    encrypted(inner, NEW).record_step(make_step("agent", "run", "key"))
    encrypted(inner, NEW).add_run(ended())
    for store in (encrypted(inner, OLD, OTHER), keyless(inner)):
        for read in everything(store):
            with pytest.raises(EncryptionKeyMissing, match="with the key 'new', which is not"):
                read()


def test_the_error_about_a_damaged_checkpoint_returns_no_encrypted_data() -> None:
    inner = SqliteCheckpointStore.in_memory()
    store = encrypted(inner, NEW)
    store.save(full())
    store.save(full())
    read_many = inner._read_many

    def damaged(agent_id: str, limit: int | None) -> Any:
        [(newest, _), older], messages = read_many(agent_id, limit)
        return [(newest, b"damaged"), older], messages

    inner._read_many = damaged  # type: ignore[method-assign]
    with pytest.raises(CheckpointDamaged):
        store.list("agent")
    with pytest.raises(EncryptionKeyMissing):
        keyless(inner).list("agent")


def everything(store: CheckpointStore) -> Iterator[Callable[[], Any]]:
    yield lambda: store.load_latest("agent")
    yield lambda: store.list("agent")
    yield lambda: store.history("agent")
    yield lambda: store.steps("agent", "run")
    yield lambda: store.runs("agent")
    yield lambda: store.run("agent", "run")
    yield lambda: store.activity("agent")


@pytest.mark.parametrize("has_keys", [True, False])
def test_an_attempt_without_the_key_is_released_and_does_not_count_as_stalled(has_keys: bool) -> None:
    inner = MemoryCheckpointStore()
    run = make_run("agent", "run", envelope={"e": 1})
    encrypted(inner, NEW).add_run(run)
    other = encrypted(inner, OLD) if has_keys else keyless(inner)
    for _ in range(3):
        with pytest.raises(EncryptionKeyMissing):
            other.start_run(run.model_copy(update={"envelope": {}}), "worker", 30)
        assert inner.holder("agent") is None

    start = encrypted(inner, NEW).start_run(run, "worker", 30)
    assert start.lease is not None
    assert (start.run.stalled, start.run.envelope) == (0, {"e": 1})


@pytest.mark.parametrize("has_keys", [True, False])
def test_an_encrypted_next_run_without_its_key_is_not_returned_as_data(has_keys: bool) -> None:
    inner = MemoryCheckpointStore()
    store = encrypted(inner, OLD) if has_keys else keyless(inner)
    start = store.start_run(make_run("agent", "first", envelope={"e": 1}), "worker", 30)
    waiting = encrypted(inner, NEW).start_run(
        make_run("agent", "second", envelope={"e": 2}), "other", 30
    )
    assert waiting.lease is None

    with pytest.raises(EncryptionKeyMissing, match="The record of run 'second'"):
        store.settle_run(start.run.model_copy(update={"status": RunStatus.FAILED}), start.lease)


def test_a_key_with_the_same_name_but_different_content_decrypts_nothing() -> None:
    inner = MemoryCheckpointStore()
    encrypted(inner, OLD).save(full())
    with pytest.raises(CheckpointDamaged):
        EncryptedStore(inner, [OTHER.replace("other:", "old:")]).load_latest("agent")


def test_equal_content_is_still_recognised_after_a_key_rotation(inner: CheckpointStore) -> None:
    before, after = encrypted(inner, OLD), encrypted(inner, NEW, OLD)
    checkpoint, step, run = full(), make_step("agent", "run", "key"), ended()
    before.save(checkpoint)
    before.record_step(step)
    before.add_run(run)

    after.save(checkpoint)
    after.record_step(step)

    assert after.add_run(run)
    assert after.list("agent") == [checkpoint]
    assert after.steps("agent", "run") == [step]
    with pytest.raises(AlreadyExists):
        after.save(checkpoint.with_metadata("another", "content"))
    assert not after.add_run(run.model_copy(update={"result": "another"}))


def test_the_first_record_of_a_step_recorded_under_two_keys_wins(
    inner: CheckpointStore,
) -> None:
    for value, store in enumerate((encrypted(inner, OLD), encrypted(inner, NEW, OLD))):
        store.record_step(make_step("agent", "run", "key", value=value))
    assert [step.value for step in encrypted(inner, NEW, OLD).steps("agent", "run")] == [0]


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_forged_key_id_is_truncated_in_the_error(has_keys: bool) -> None:
    inner = MemoryCheckpointStore()
    inner.save(make_checkpoint("agent", Conversation(), state={TAG: "x" * 5000 + ".eA=="}))
    store = encrypted(inner) if has_keys else keyless(inner)
    with pytest.raises(EncryptionKeyMissing) as missing:
        store.load_latest("agent")
    assert missing.value.key_id == "x" * 32


def test_the_size_limit_error_names_the_plain_message() -> None:
    store = encrypted(MemoryCheckpointStore(max_checkpoint_bytes=1000))
    with pytest.raises(CheckpointTooLarge, match=r"message 1 \(role user\)"):
        store.save(make_checkpoint("agent", talk("short", "x" * 2000)))
