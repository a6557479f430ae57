"""Changes that another client made to the keys are detected and named, and cost no more than
necessary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from redis import Redis

from celery_ckpt import Checkpoint, RedisCheckpointStore
from celery_ckpt.errors import CheckpointDamaged, SchemaTooNew, StoreError
from celery_ckpt.retention.policy import Rules
from celery_ckpt.stores.findings import damage_in
from celery_ckpt.testing.contract.fixtures import sweep
from celery_ckpt.testing.factories import make_run
from tests.support.logged_work import CALL, work_with_log
from tests.support.redis_agents import checkpoint, line, run, talk, work
from tests.support.servers.valkey import Valkey

AGENT, LOG, RUNS = "ckpt:{agent}:agent", "ckpt:{agent}:log", "ckpt:{agent}:runs"


@pytest.fixture
def server(valkey: Valkey, redis_url: str) -> Iterator[Redis]:
    with valkey.client() as client:
        yield client


@pytest.fixture
def saved(store: RedisCheckpointStore) -> list[Checkpoint]:
    return work(store, "agent", 5)


def assert_damaged(store: RedisCheckpointStore, one: Checkpoint, others: list[Checkpoint]) -> None:
    with pytest.raises(CheckpointDamaged) as caught:
        store.load(one.id)
    assert (caught.value.agent_id, caught.value.checkpoint_id) == ("agent", one.id)
    assert "'agent'" in str(caught.value)
    assert one.id in str(caught.value)
    with pytest.raises(CheckpointDamaged) as caught:
        store.list("agent")
    assert caught.value.readable == others[::-1]
    for other in others:
        assert store.load(other.id) == other


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"1",
        b"nonsense",
        b'{"id": "somebody else\'s"}',
        b'1 3 2 0 0:3 abc {"messages": 3}',
        b"1 3 2 0 0:3 abc [1, 2]",
        b"1 3 2 0 -1:3 abc {}",
        b"1 3 2 0 0:30 abc {}",
        b"0 3 2 0 0:3 abc {}",
        b"\xff\xfe\x00",
    ],
)
@pytest.mark.parametrize("number", [0, 2, 4], ids=["oldest", "middle", "latest"])
def test_a_damaged_header_loses_only_its_checkpoint(
    store, server, saved, header: bytes, number: int
) -> None:
    one = saved.pop(number)
    server.hset(AGENT, f"c:{one.id}", header)
    assert_damaged(store, one, saved)
    if number == 4:
        with pytest.raises(CheckpointDamaged, match=one.id):
            store.load_latest("agent")
    else:
        assert store.load_latest("agent") == saved[-1]


def test_no_altered_header_byte_yields_a_different_checkpoint(store, server, saved) -> None:
    latest = saved[-1]
    original = server.hget(AGENT, f"c:{latest.id}")
    for place in range(len(original)):
        for byte in b"0", b"9", b" ", b"+", b"x":
            server.hset(AGENT, f"c:{latest.id}", original[:place] + byte + original[place + 1 :])
            with suppress(CheckpointDamaged, SchemaTooNew):
                assert store.load_latest("agent") == latest


def test_a_header_of_a_newer_version_is_refused_as_too_new(store, server, saved) -> None:
    original = server.hget(AGENT, f"c:{saved[-1].id}")
    server.hset(AGENT, f"c:{saved[-1].id}", b"2" + original[1:])
    for read in (store.load_latest, store.list, store.history):
        with pytest.raises(SchemaTooNew, match="'agent' has format version 2"):
            read("agent")
    assert store.load(saved[0].id) == saved[0]


def test_a_missing_message_loses_the_checkpoints_that_contain_it(store, server, saved) -> None:
    server.rpop(LOG)
    assert_damaged(store, saved.pop(), saved)
    with pytest.raises(CheckpointDamaged, match="it needs 5 messages, and some are missing"):
        store.load_latest("agent")


@pytest.mark.parametrize(
    "altered", [line("agent", 99).to_json(), b"", b"nonsense", b"[]", b'{"role":"user"},{}']
)
def test_an_altered_message_loses_the_checkpoints_that_contain_it(
    store, server, saved, altered: bytes
) -> None:
    server.lset(LOG, 4, altered)
    assert_damaged(store, saved.pop(), saved)
    with pytest.raises(CheckpointDamaged):
        store.load_latest("agent")


@pytest.mark.parametrize("what", ["tip", "the header of the latest"])
def test_missing_data_is_never_reported_as_no_checkpoint(store, server, saved, what: str) -> None:
    if what == "tip":
        server.hdel(AGENT, "tip")
    else:
        server.hdel(AGENT, f"c:{saved.pop().id}")
    with pytest.raises(CheckpointDamaged, match="'agent'"):
        store.load_latest("agent")
    assert store.list("agent") == saved[::-1]
    assert all(store.load(one.id) == one for one in saved)
    assert list(store.agents()) == ["agent"]


def test_an_agent_that_lost_all_its_headers_is_not_treated_as_new(store, server, saved) -> None:
    server.hdel(AGENT, *(f"c:{one.id}" for one in saved))
    with pytest.raises(CheckpointDamaged, match=saved[-1].id):
        store.load_latest("agent")
    server.delete(AGENT)
    with pytest.raises(CheckpointDamaged, match="'agent'"):
        store.load_latest("agent")


@pytest.mark.parametrize("gone", ["agent", "tip", "header", "message"])
def test_a_damaged_agent_continues_with_its_next_save(
    store, server, saved, redis_url, gone: str
) -> None:
    damage = {
        "agent": lambda: server.delete(AGENT),
        "tip": lambda: server.hdel(AGENT, "tip"),
        "header": lambda: server.hset(AGENT, f"c:{saved[-1].id}", "nonsense"),
        "message": lambda: server.lset(LOG, 0, "nonsense"),
    }
    damage[gone]()
    after = checkpoint("agent", 6)
    with RedisCheckpointStore.from_url(redis_url) as cold:
        cold.save(after)
    assert store.load_latest("agent") == after
    assert store.load(after.id) == after
    store.prune("agent", keep=1)
    assert store.list("agent") == [after]
    assert store.load_latest("agent") == after


def test_a_writer_detects_that_the_start_of_the_log_was_deleted(store, server, saved) -> None:
    after = Checkpoint.new("agent", talk("somebody else", 3), 6)
    store.save(after)
    assert store.prune("agent", keep=1) == 5
    server.delete(AGENT)
    conversation = after.conversation
    conversation.append(line("agent", 7))
    last = Checkpoint.new("agent", conversation, 7)
    store.save(last)
    assert store.load_latest("agent") == last


@pytest.mark.parametrize("number", [0, 2])
def test_a_damaged_checkpoint_is_pruned_before_any_readable_one(
    store, server, saved, number: int
) -> None:
    one = saved.pop(number)
    server.hset(AGENT, f"c:{one.id}", "nonsense")
    assert store.prune("agent", keep=2) == 3
    assert store.list("agent") == [saved[-1], saved[-2]]
    assert store.load_latest("agent") == saved[-1]


def test_a_sweep_skips_an_agent_written_by_a_newer_version(store, server, saved) -> None:
    field = f"c:{saved[1].id}"
    server.hset(AGENT, field, b"2" + server.hget(AGENT, field)[1:])
    [snapshot] = store.snapshots(["agent"])
    assert "format version 2" in snapshot.damage
    before = server.hgetall(AGENT)
    sweep(store, Rules(keep=1))
    assert server.hgetall(AGENT) == before


@pytest.mark.parametrize("size", [1, 5000])
def test_a_pin_is_respected_although_its_checkpoint_is_damaged(store, server, saved, size: int) -> None:
    store.pin(saved[1].id, "evidence")
    server.hset(AGENT, f"c:{saved[1].id}", "?" * size)
    sweep(store, Rules(keep=1))
    [latest, pinned] = store.snapshots(["agent"])[0].checkpoints
    assert (latest.id, pinned.id, pinned.pin) == (saved[-1].id, saved[1].id, "evidence")


def test_removing_other_checkpoints_does_not_hide_that_the_latest_is_damaged(
    store, server, saved
) -> None:
    server.hset(AGENT, f"c:{saved[-1].id}", "nonsense")
    assert store.remove("agent", [saved[0].id]) == 1
    with pytest.raises(CheckpointDamaged, match=saved[-1].id):
        store.load_latest("agent")


def test_removing_the_latest_makes_the_newest_readable_one_the_latest(store, server, saved) -> None:
    server.hset(AGENT, f"c:{saved[0].id}", "nonsense")
    assert store.remove("agent", [saved[-1].id]) == 1
    assert store.load_latest("agent") == saved[-2]


@pytest.mark.parametrize("key", [AGENT, LOG])
def test_a_key_of_another_type_is_a_store_error(store, server, saved, key: str) -> None:
    server.delete(key)
    server.set(key, "somebody else's")
    with pytest.raises(StoreError, match="wrong kind of value"):
        store.load_latest("agent")
    with pytest.raises(StoreError, match="wrong kind of value"):
        store.save(checkpoint("agent", 6))


def test_a_record_that_claims_billions_of_messages_is_reported_as_damaged_quickly(
    store, server, saved
) -> None:
    original = server.hget(AGENT, f"c:{saved[-1].id}")
    server.hset(AGENT, f"c:{saved[-1].id}", original.replace(b"0:4,", b"0:4000000000,"))
    assert server.hget(AGENT, f"c:{saved[-1].id}") != original
    assert_damaged(store, saved.pop(), saved)


@pytest.mark.parametrize("tip", [b"", b"nonsense", b"\xff", b"-1 c:x", b"5"])
def test_a_damaged_tip_is_detected_and_repaired_by_the_next_save(
    store, server, saved, tip: bytes
) -> None:
    server.hset(AGENT, "tip", tip)

    with pytest.raises(CheckpointDamaged, match="'agent'"):
        store.load_latest("agent")
    assert store.list("agent") == saved[::-1]
    after = checkpoint("agent", 6)
    store.save(after)
    assert store.load_latest("agent") == after
    assert store.list("agent") == [after, *saved[::-1]]


@pytest.mark.parametrize(
    ("field", "value"), [("owner", b"\xff"), ("token", b"x"), ("expires_ms", b"9" * 30)]
)
def test_a_damaged_lease_is_a_store_error(store, server, saved, field: str, value: bytes) -> None:
    store.acquire("agent", "me", 60)
    server.hset(AGENT, field, value)

    with pytest.raises(StoreError):
        store.holder("agent")
    with pytest.raises(StoreError):
        store.save(checkpoint("agent", 6))
    assert store.load_latest("agent") == saved[-1]


@pytest.mark.parametrize("line", [b"", b"nonsense", b"1 - running 0 x 0 - - {}"])
def test_a_damaged_run_is_a_store_error_and_takes_no_lease(store, server, line: bytes) -> None:
    store.add_run(run("agent"))
    server.hset(RUNS, "run-1", line)
    with pytest.raises(StoreError):
        store.run("agent", "run-1")
    with pytest.raises(StoreError):
        store.start_run(run("agent"), "me", 30)
    with pytest.raises(StoreError):
        store.cancel_run("agent", "run-1", "me", 30)
    assert store.holder("agent") is None
    assert server.hget(RUNS, "run-1") == line


@pytest.mark.parametrize("word", [0, 2, 5, 7], ids=["number", "status", "stalled", "delivery"])
def test_a_run_with_a_missing_word_is_a_store_error(store, server, word: int) -> None:
    store.add_run(run("agent"))
    words = server.hget(RUNS, "run-1").split(b" ", 8)
    line = b" ".join(words[:word] + words[word + 1 :])
    server.hset(RUNS, "run-1", line)
    for read in (
        lambda: store.run("agent", "run-1"),
        lambda: store.start_run(run("agent"), "me", 30),
        lambda: store.cancel_run("agent", "run-1", "me", 30),
    ):
        with pytest.raises(StoreError, match="'run-1' of agent 'agent' is damaged"):
            read()
    assert store.holder("agent") is None
    assert server.hget(RUNS, "run-1") == line


@pytest.mark.parametrize(
    ("word", "instead"),
    [(0, b"first"), (3, b"true"), (4, b"+1")],
    ids=["number", "delivered", "attempts"],
)
def test_a_run_that_scripts_cannot_read_is_neither_started_nor_cancelled(
    store, server, word: int, instead: bytes
) -> None:
    store.add_run(run("agent"))
    words = server.hget(RUNS, "run-1").split(b" ", 8)
    words[word] = instead
    server.hset(RUNS, "run-1", b" ".join(words))
    with pytest.raises(StoreError, match="'run-1' of agent 'agent' is damaged"):
        store.start_run(run("agent"), "me", 30)
    with pytest.raises(StoreError, match="'run-1' of agent 'agent' is damaged"):
        store.cancel_run("agent", "run-1", "me", 30)
    assert store.holder("agent") is None
    assert server.hget(RUNS, "run-1") == b" ".join(words)


def test_a_missing_run_is_skipped_when_another_run_is_settled(store, server) -> None:
    start = store.start_run(run("agent"), "me", 30)
    for name in ("run-2", "run-3"):
        store.start_run(run("agent", name), "me", 30)
    server.hdel(RUNS, "run-2")
    following = store.settle_run(start.run.model_copy(update={"status": "failed"}), start.lease)
    assert following.run_id == "run-3"
    assert [each.run_id for each in store.activity("agent").open] == ["run-3"]


@pytest.mark.parametrize("part", ["attempts", "entries", "live"])
@pytest.mark.parametrize("kind", ["text", "hash", "garbage"])
def test_a_damaged_event_log_keeps_no_run_from_working(store, server, part: str, kind: str) -> None:
    work_with_log(store, "first")
    key = f"ckpt:{{agent}}:{part}"
    assert server.exists(key)
    server.delete(key)
    if kind == "text":
        server.set(key, "somebody else's")
    elif kind == "hash":
        server.hset(key, "a", "b")
    else:
        server.rpush(key, b"\xff", b"7", b"8 [1", b'9 ["ended",1,{}]')
    found = [finding.what for finding in damage_in(store)]
    assert len(found) == 1
    assert found[0].endswith("of its event log cannot be read; its runs are not affected")

    work_with_log(store, "second")
    store.start_run(make_run("agent", "third"), "owner", 60)
    store.cancel_run("agent", "third", "me", 60, log=[CALL])
    assert [run.status.value for run in store.runs("agent")] == ["succeeded", "succeeded", "cancelled"]
    assert list(store.event_log("agent", after=0))


@pytest.mark.parametrize("field", ["attempt", "renewed", "events", "followed"])
def test_damaged_fields_of_the_event_log_keep_no_run_from_working(store, server, field: str) -> None:
    work_with_log(store, "first")
    server.hset(AGENT, field, b"nonsense \xff")
    work_with_log(store, "second")
    assert store.event_log("agent")
