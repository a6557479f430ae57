"""What is specific to the sweeps of some stores."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from redis import Redis

from celery_ckpt import Checkpoint, CheckpointStore, Conversation, FileCheckpointStore, open_store
from celery_ckpt.clock import system_clock
from celery_ckpt.records import Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.stores.redis import pruning
from celery_ckpt.testing import make_checkpoint, make_conversation, make_message
from celery_ckpt.testing.contract.fixtures import judged, saved, settled, sweep


@pytest.mark.parametrize("size", [10, 100_000, 400_000])
def test_a_checkpoint_summary_has_the_facts_of_its_record_but_not_its_state(
    redis_url: str, size: int
) -> None:
    state = {"text": '"pin":' + "x" * size}
    pins = [{"pin": 'a "label", é'}, {"other": "pin"}, {}]
    with open_store(redis_url) as store, Redis.from_url(redis_url) as client:
        for metadata in pins:
            store.save(make_checkpoint("agent", make_conversation(2), metadata=metadata, state=state))
        before = client.info("stats")["total_net_output_bytes"]
        [snapshot] = store.snapshots(["agent"])
        assert client.info("stats")["total_net_output_bytes"] - before < 20_000
        facts = [(mark.id, mark.seq, mark.created_at, mark.pin) for mark in snapshot.checkpoints]
        history = store.history("agent")
        assert facts == [(info.id, info.seq, info.created_at, info.pin) for info in history]
        lengths = [
            client.hstrlen("ckpt:{agent}:agent", f"c:{mark.id}") for mark in snapshot.checkpoints
        ]
        assert [one.size for one in snapshot.checkpoints] == lengths


def test_no_sweep_script_reads_everything_of_an_agent_with_large_states(redis_url: str) -> None:
    with open_store(redis_url) as store, Redis.from_url(redis_url) as client:
        for number in range(30):
            state = {"number": number, "text": "x" * 100_000}
            store.save(make_checkpoint("agent", make_conversation(1), state=state))
        client.config_resetstat()
        [plan] = judged(store, Rules(keep=20))
        store.apply([plan])
        commands = client.info("commandstats")
        assert "cmdstat_hgetall" not in commands
        scripts = sum(commands[name]["calls"] for name in commands if name.startswith("cmdstat_eval"))
        assert scripts >= 3_000_000 // 600_000
        assert len(store.history("agent")) == 20


def test_a_long_history_is_read_and_removed_in_parts(redis_url: str) -> None:
    conversation = Conversation()
    with open_store(redis_url) as store, Redis.from_url(redis_url) as client:
        pinned = make_checkpoint("agent", make_conversation(2), metadata={"pin": "mine"})
        store.save(pinned)
        history = []
        for number in range(2300):
            conversation.append(make_message(f"{number}"))
            if number % 100 == 99:  # compacted, so that the log can be trimmed
                conversation.replace(conversation.messages[-1:])
            history.append(make_checkpoint("agent", conversation))
            store.save(history[-1])
        store.pin(history[5].id, "this too")

        store.pin(pinned.id, None)
        store.pin(history[5].id, None)
        rounds = 0
        while len(store.history("agent")) > 10:
            sweep(store, Rules(keep=10))
            store.schedule("agent", 0, Schedule.SWEEP)
            rounds += 1
        assert rounds == 3
        sweep(store, Rules(keep=10))
        assert store.list("agent") == history[:-11:-1]
        # Everything that the ten need, and nothing else.
        assert client.llen("ckpt:{agent}:log") == 101
        assert list(store.findings()) == []


@pytest.mark.parametrize("is_swept", [True, False])
def test_no_script_lists_all_checkpoints_of_a_long_history_to_remove(
    redis_url: str, is_swept: bool
) -> None:
    with open_store(redis_url) as store, Redis.from_url(redis_url) as client:
        conversation = make_conversation(1)
        for number in range(1100):
            plain = make_checkpoint("agent", conversation)
            store.save(
                Checkpoint(**{**plain.__dict__, "id": f"mine {number}"}) if number > 1097 else plain
            )
        settled(store, "agent", "agent", system_clock.now() - timedelta(days=1))
        client.config_resetstat()
        if is_swept:
            [removed] = store.apply(judged(store, Rules(forget_after=60)))
            assert (removed.forgotten, removed.checkpoints, len(set(removed.ids))) == (True, 1100, 1100)
        else:
            assert store.delete("agent") == 1100
        assert "cmdstat_hkeys" not in client.info("commandstats")
        assert client.keys() == [], "and nothing is left"


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_the_freed_bytes_are_reported(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_ckpt.stores.file.journal.SEGMENT_BYTES", 5_000)
    url = {"file": f"file://{tmp_path}/store", "sqlite": f"sqlite:///{tmp_path}/s.db"}[kind]
    with open_store(url) as store:
        _check_freed(store)


def test_redis_reports_the_freed_bytes(redis_url: str) -> None:
    with open_store(redis_url) as store:
        _check_freed(store)


def test_an_agent_with_more_to_remove_than_one_batch_becomes_due_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "LONG", 10)
    with open_store(redis_url) as store:
        history = saved(store, "agent", 25)
        for left in (15, 5, 2):
            store.apply(judged(store, Rules(keep=2), retry=-1))
            assert len(store.history("agent")) == left
        assert store.list("agent") == history[:-3:-1]
        assert sweep(store) == []


def test_a_deleted_agent_leaves_no_file(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path)
    saved(store, "stays", 1)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    saved(store, "agent", 2)
    settled(store, "agent", "agent", system_clock.now() - timedelta(hours=2))
    store.apply(judged(store, Rules(forget_after=60)))

    assert list(store.agents()) == ["stays"]
    assert {path for path in tmp_path.rglob("*") if path.is_file()} <= before


def _check_freed(store: CheckpointStore) -> None:
    for number in range(20):
        message = make_message(f"{number}".ljust(2_000))
        store.save(make_checkpoint("agent", Conversation(messages=[message])))
    [pruned] = store.apply(judged(store, Rules(keep=5)))
    assert pruned.checkpoints == 15
    assert 20_000 < pruned.bytes < 60_000


def test_files_left_by_a_crash_are_found_and_removed(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path)
    saved(store, "agent", 2)
    clean = sorted(path for path in tmp_path.rglob("*"))
    (tmp_path / "trash" / "abc").mkdir(parents=True)
    (tmp_path / "sweep" / ".x.1234").touch()
    empty = tmp_path / "agents" / "zz" / "zzzz"
    empty.mkdir(parents=True)
    # New files may belong to an agent that is running.
    assert [found.subject for found in store.findings()] == [str(tmp_path / "trash" / "abc")]
    for path in (tmp_path / "sweep" / ".x.1234", empty):
        os.utime(path, (0, 0))

    assert len(list(store.findings())) == 3
    assert all(found.repaired for found in store.findings(repair=True))
    assert list(store.findings()) == []
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "zz") == clean
