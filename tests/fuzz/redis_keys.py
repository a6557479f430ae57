"""Tampered keys of a real server: every reply is what was saved, or an error that says so.

Checkpoints carry a checksum: each is returned as it was saved, or refused. For the rest, the page on
reliability says what is detected. An encrypted store detects everything except removal.
"""

from __future__ import annotations

import atexit
import base64
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from redis import Redis

from celery_ckpt import Checkpoint, CheckpointStore, RedisCheckpointStore
from celery_ckpt.errors import CheckpointDamaged, CheckpointError
from celery_ckpt.records import CheckpointInfo, RunRecord, RunStatus, Schedule, Step
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.stores.redis import doctor
from celery_ckpt.testing import make_checkpoint, make_run, make_step
from tests.fuzz.exports import BYSTANDER, exported, fill, id_of
from tests.fuzz.mutations import any_text, mangled_bytes
from tests.support.servers.valkey import Valkey

AGENT, RUN, WAITING = "first", "run of first", "another run"
#: All keys that show that there was a checkpoint: the agent's hash, with the records, and its log.
CHECKPOINT_KEYS = f"ckpt:{{{AGENT}}}:agent", f"ckpt:{{{AGENT}}}:log"
_KEY = base64.b64encode(bytes(range(32))).decode()


class Saved(NamedTuple):
    """Everything that was saved for an agent, and the keys of all agents."""

    checkpoints: list[Checkpoint]
    steps: list[Step]
    runs: dict[str, RunRecord]
    neighbour: bytes
    keys: dict[bytes, bytes]


def check_redis(chance: Random) -> None:
    """Check a store after values in the keys of an agent were changed, exchanged, moved,
    removed or added.
    """
    with _tampered(chance, is_encrypted=False) as (store, saved, is_lost):
        _check_checkpoints(store, saved, is_lost, _is_content_of)
        _check_the_rest(store)
        if chance.random() < 0.1:  # the doctor reads everything
            _check_doctor(store)
        _write(store)
        assert exported(store, BYSTANDER) == saved.neighbour


def check_encrypted_redis(chance: Random) -> None:
    """Check an encrypted store in the same way: it returns nothing that was not saved there."""
    with _tampered(chance, is_encrypted=True) as (store, saved, is_lost):
        _check_checkpoints(store, saved, is_lost, lambda one, all_: one in all_)
        _check_encrypted(store, saved)
        _check_the_rest(store)
        if chance.random() < 0.1:  # the doctor reads everything
            _check_doctor(store)
        _write(store)
        assert exported(store, BYSTANDER) == saved.neighbour


# -- reading -------------------------------------------------------------------------------------------


def _read(read: Callable[[], Any]) -> Any:
    """Return the reply, or ``None`` if an error that names the agent refuses it."""
    try:
        return read()
    except CheckpointError as error:
        if not _is_named_in(str(error)):
            raise AssertionError(f"the error does not name its agent: {error}") from error
        return list(error.readable) if isinstance(error, CheckpointDamaged) else None


def _is_named_in(message: str) -> bool:
    # Or it names the index that all agents share.
    return any(name in message for name in (f"{AGENT!r}", f"{{{AGENT}}}", " about ckpt:"))


def _is_content_of(one: Checkpoint, all_: list[Checkpoint]) -> bool:
    """True if the content was saved. A digest covers neither the id nor the order."""
    return any(one.model_copy(update={"id": other.id}) == other for other in all_)


def _check_checkpoints(
    store: CheckpointStore,
    saved: Saved,
    is_lost: bool,
    is_one: Callable[[Checkpoint, list[Checkpoint]], bool],
) -> None:
    expect_latest(store)
    for number in (1, 2, 3):
        with suppress(CheckpointError):
            assert is_lost or store.load(id_of(AGENT, number)) is not None
    with suppress(CheckpointError):
        assert is_lost or len(store.list(AGENT)) >= len(saved.checkpoints)
    found = [
        _read(lambda: store.load_latest(AGENT)),
        *(_read(lambda n=n: store.load(id_of(AGENT, n))) for n in (1, 2, 3)),  # type: ignore[misc]
        *(_read(lambda: store.list(AGENT)) or ()),
        *(_read(lambda: store.list(AGENT, limit=1)) or ()),
    ]
    for one in found:
        assert not one or is_one(one, saved.checkpoints), one


def expect_latest(store: CheckpointStore) -> None:
    """Fail if the store answers ``None`` while a record or a message of the agent is left."""
    with suppress(CheckpointError):
        is_found = store.load_latest(AGENT) is not None
        assert is_found or not _client().exists(*CHECKPOINT_KEYS), "there is data"


def _check_encrypted(store: CheckpointStore, saved: Saved) -> None:
    for info in _read(lambda: store.history(AGENT)) or ():
        assert info.metadata in ({}, *(one.metadata for one in saved.checkpoints))
    for step in _read(lambda: store.steps(AGENT, RUN)) or ():
        assert step in saved.steps
    runs = [
        *(_read(lambda: store.runs(AGENT)) or ()),
        *(_read(lambda: store.activity(AGENT).open) or ()),
        *filter(None, [_read(lambda: store.run(AGENT, RUN)), _read(lambda: store.run(AGENT, WAITING))]),
    ]
    for run in runs:
        was = saved.runs.get(run.run_id, make_run(AGENT, run.run_id))
        assert run.envelope in (was.envelope, {})
        assert run.result in (was.result, None)
        assert run.error in (was.error, None)


def _check_the_rest(store: CheckpointStore) -> None:
    """Check that data without a checksum belongs to the requested agent, and has the right type."""
    for info in _read(lambda: store.history(AGENT)) or ():
        assert isinstance(info, CheckpointInfo)
    for step in _read(lambda: store.steps(AGENT, RUN)) or ():
        assert (step.agent_id, step.run_id) == (AGENT, RUN)
    for run in _read(lambda: store.runs(AGENT)) or ():
        assert run.agent_id == AGENT
    for name in (RUN, WAITING):
        run = _read(lambda name=name: store.run(AGENT, name))  # type: ignore[misc]
        assert run is None or (run.agent_id, run.run_id) == (AGENT, name)
    activity = _read(lambda: store.activity(AGENT))
    assert activity is None or all(run.agent_id == AGENT for run in activity.open)
    holder = _read(lambda: store.holder(AGENT))
    assert holder is None or holder.agent_id == AGENT
    _read(lambda: store.policy(AGENT))
    [snapshot] = store.snapshots([AGENT])
    assert snapshot.agent_id == AGENT
    for on in Schedule:
        assert (_read(lambda on=on: store.count_due(on)) or 0) >= 0  # type: ignore[misc]


def _check_doctor(store: CheckpointStore) -> None:
    assert "" not in (_read(lambda: list(store.agents())) or ())
    for repair in (False, True):
        findings = _read(lambda repair=repair: list(store.findings(repair))) or ()  # type: ignore[misc]
        assert all(finding.what for finding in findings)


def _write(store: CheckpointStore) -> None:
    """Check that later writes succeed or are refused."""
    run = make_run(AGENT, WAITING, envelope={"text": "[]"})
    ended = run.model_copy(update={"status": RunStatus.FAILED})
    writes: tuple[Callable[[], Any], ...] = (
        lambda: store.add_run(run),
        lambda: store.start_run(run, "me", 30),
        lambda: store.cancel_run(AGENT, WAITING, "me", 30),
        lambda: store.settle_run(ended),
        lambda: store.record_step(make_step(AGENT, RUN, "3:call:c3", iteration=3)),
        lambda: store.drop_steps(AGENT, RUN),
        lambda: store.update_run(ended),
        lambda: store.pin(id_of(AGENT, 1), "evidence"),
        lambda: store.rewrite(AGENT, lambda contents: contents),
        lambda: store.prune(AGENT, 2),
        lambda: store.save(make_checkpoint(AGENT)),
        lambda: store.claim_due(10, 1),
        lambda: store.delete(AGENT),
    )
    for write in writes:
        with suppress(CheckpointError):
            write()


# -- tampering -----------------------------------------------------------------------------------------


@contextmanager
def _tampered(chance: Random, *, is_encrypted: bool) -> Iterator[tuple[CheckpointStore, Saved, bool]]:
    """Return a store with two agents of which one was tampered with, and whether any of its
    data may be lost.
    """
    saved, client = _saved(is_encrypted, chance.random() < 0.3), _client()
    _restore(client, saved.keys)
    own = [key for key in sorted(saved.keys) if b"{%b}" % AGENT.encode() in key]
    shared = [key for key in sorted(saved.keys) if b"{" not in key]
    is_lost = False
    for _ in range(chance.randrange(1, 3)):
        key = chance.choice(own if chance.random() < 0.85 else shared)
        is_lost |= _tamper(chance, client, key) or key in shared
    # No other process is about to write anything.
    with patch.object(doctor, "PATIENCE", 0):
        yield _store(client, is_encrypted), saved, is_lost


def store_without(*keys: str, is_encrypted: bool) -> CheckpointStore:
    """Return a store with two agents from which these keys were deleted."""
    client = _client()
    _restore(client, _saved(is_encrypted, is_held=False).keys)
    assert client.delete(*keys) == len(keys)
    return _store(client, is_encrypted)


def _tamper(chance: Random, client: Redis, key: bytes) -> bool:
    """Change one thing in a key. Return True if something was removed or moved."""
    kind = client.type(key).decode()
    if kind == "none" or chance.random() < 0.06:
        client.delete(key)
        if chance.random() < 0.5:
            client.set(key, any_text(chance).encode())
        return True
    return {"hash": _in_hash, "list": _in_list, "zset": _in_set, "string": _in_text}[kind](
        chance, client, key
    )


def _value(chance: Random, valid: bytes) -> bytes:
    if chance.random() < 0.2:
        return chance.choice((b"", b"-1", b"x", any_text(chance).encode(), chance.randbytes(9)))
    if chance.random() < 0.3:  # one byte
        at = chance.randrange(len(valid) + 1)
        return valid[:at] + chance.randbytes(1) + valid[at + 1 :]
    return mangled_bytes(chance, valid)


def _in_hash(chance: Random, client: Redis, key: bytes) -> bool:
    own = client.hgetall(key)
    others = client.hgetall(key.replace(b"{%b}" % AGENT.encode(), b"{%b}" % BYSTANDER.encode()))
    field, other = chance.choice(sorted(own)), chance.choice(sorted(own))
    match chance.choice(("change", "change", "change", "copy", "steal", "drop", "rename", "add")):
        case "change":
            client.hset(key, field, _value(chance, own[field]))
        case "copy":
            client.hset(key, field, own[other])
        case "steal" if others:
            client.hset(key, field, others[chance.choice(sorted(others))])
        case "rename":
            client.hdel(key, field)
            client.hset(key, _value(chance, field), own[field])
            return True
        case "add":
            client.hset(key, _value(chance, field), _value(chance, own[other]))
        case _:
            client.hdel(key, field)
            return True
    return False


def _in_list(chance: Random, client: Redis, key: bytes) -> bool:
    items = client.lrange(key, 0, -1)
    at, to = chance.randrange(len(items)), chance.randrange(len(items))
    match chance.choice(("change", "change", "exchange", "drop", "add", "steal")):
        case "change":
            items[at] = _value(chance, items[at])
        case "exchange":
            items[at], items[to] = items[to], items[at]
        case "add":
            items.insert(at, _value(chance, items[to]))
        case "steal":
            items[at] = b'{"role":"user","content":"something else"}'
        case _:
            del items[at]
    client.delete(key)
    if items:
        client.rpush(key, *items)
    return False


def _in_set(chance: Random, client: Redis, key: bytes) -> bool:
    member, score = chance.choice(client.zrange(key, 0, -1, withscores=True))
    if chance.random() < 0.5:
        client.zrem(key, member)
        member = _value(chance, member)
    if chance.random() < 0.8:
        client.zadd(key, {member: chance.choice((score, 0, -1, 1e300, -1e300, float("inf")))})
    return False


def _in_text(chance: Random, client: Redis, key: bytes) -> bool:
    client.set(key, _value(chance, client.get(key)))
    return False


# -- the server ----------------------------------------------------------------------------------------


@cache
def _client() -> Redis:
    """Return the server of this process."""
    directory = tempfile.TemporaryDirectory(prefix="ckpt-hostile-")
    server = Valkey(Path(directory.name), "--save", "", "--appendonly", "no").__enter__()
    atexit.register(lambda: (server.__exit__(None, None, None), directory.cleanup()))
    return server.client()


def _store(client: Redis, is_encrypted: bool) -> CheckpointStore:
    store = RedisCheckpointStore(client)
    return EncryptedStore(store, _KEY) if is_encrypted else store


def _restore(client: Redis, keys: dict[bytes, bytes]) -> None:
    with client.pipeline(transaction=False) as pipeline:
        pipeline.flushdb()
        for key, value in keys.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()


@cache
def _saved(is_encrypted: bool, is_held: bool) -> Saved:
    client = _client()
    client.flushdb()
    store = _store(client, is_encrypted)
    for agent_id in (AGENT, BYSTANDER):
        fill(store, agent_id, says=f"I am {agent_id}", metadata={"of": agent_id})
    store.add_run(make_run(AGENT, WAITING, envelope={"text": "[]", "headers": {}}, result=[1]))
    store.schedule(AGENT, 60)
    if is_held:
        store.acquire(AGENT, "me", 3600)
    return Saved(
        store.list(AGENT),
        store.steps(AGENT, RUN),
        {run.run_id: run for run in store.runs(AGENT)},
        exported(store, BYSTANDER),
        {key: client.dump(key) for key in client.scan_iter()},
    )
