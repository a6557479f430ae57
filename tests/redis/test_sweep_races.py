"""Sweeps at full speed beside agents that save, are pinned and resume: nothing that is needed
is deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from celery_ckpt import Checkpoint, Conversation, RedisCheckpointStore
from celery_ckpt.records import RunStatus, Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.stores.redis.checkpoints import Lines
from celery_ckpt.testing import make_checkpoint, make_message, make_run, make_step
from celery_ckpt.testing.contract.fixtures import judged, sweep

AGENTS, SAVES, KEEP = 4, 30, 2
RULES = Rules(keep=KEEP, forget_after=60)


def write_and_resume(url: str, agent_id: str) -> tuple[str, str]:
    """Save in a loop. After every few saves, continue from what another process loads."""
    pinned = ""
    with RedisCheckpointStore.from_url(url) as store:
        conversation, saved = Conversation(), 0
        while saved < SAVES:
            start = store.start_run(make_run(agent_id, f"run {saved}"), "me", 60)
            latest = store.load_latest(agent_id)
            if saved:
                assert latest is not None
                assert latest.conversation.digest == conversation.digest
                conversation = latest.conversation
            for _ in range(3):
                conversation.append(make_message())
                if len(conversation) > 20:
                    conversation.replace(conversation.messages[-5:])
                metadata = {"pin": "mine"} if saved == SAVES // 2 else {}
                checkpoint = Checkpoint.new(agent_id, conversation, saved, metadata=metadata)
                store.save(checkpoint, start.lease)
                pinned = checkpoint.id if metadata else pinned
                # The last save is there, complete, whatever a sweep does.
                assert store.load(checkpoint.id) == checkpoint
                saved += 1
            status = RunStatus.SUCCEEDED if saved % 2 else RunStatus.FAILED
            store.record_step(make_step(agent_id, start.run.run_id), start.lease)
            ended = {"status": status, "ended_at": start.run.created_at - timedelta(days=1)}
            assert store.run(agent_id, start.run.run_id) == start.run, "an open run is kept"
            store.settle_run(start.run.model_copy(update=ended), start.lease)
        latest = store.load_latest(agent_id)
        assert latest is not None
        return latest.id, pinned


def sweep_until(url: str, is_over: Callable[[], bool]) -> int:
    swept = 0
    with RedisCheckpointStore.from_url(url) as store:
        while not is_over():
            plans = judged(store, RULES, retry=0)
            swept += sum(one.checkpoints for one in store.apply(plans))
    return swept


def test_a_live_agent_never_misses_data_it_needs(store: RedisCheckpointStore, redis_url: str) -> None:
    names, over = [f"agent {number}" for number in range(AGENTS)], threading.Event()
    with ThreadPoolExecutor() as pool:
        sweeping = [pool.submit(sweep_until, redis_url, over.is_set) for _ in range(2)]
        try:
            writing = {name: pool.submit(write_and_resume, redis_url, name) for name in names}
            left = {name: future.result(100) for name, future in writing.items()}
        finally:
            over.set()
        swept = sum(future.result(60) for future in sweeping)
    assert swept > 0
    for name in names:  # agents that a sweep still had claimed
        store.schedule(name, 0, Schedule.SWEEP)
    sweep(store, RULES)

    for name, (latest, pinned) in left.items():
        history = store.history(name)
        assert history[0].id == latest
        assert [info.id for info in history if info.pin] == [pinned]
        assert len(history) == KEEP + 1
        assert len(store.list(name)) == len(history)
        [last] = store.runs(name)
        assert last.run_id == f"run {SAVES - 3}"
        assert len(store.steps(name, last.run_id)) == (last.status is RunStatus.FAILED)
    assert list(store.findings()) == []


def with_a_trimmed_log(store: RedisCheckpointStore) -> list[Checkpoint]:
    """Return a store with an agent whose checkpoints share no messages, and whose log does not
    begin at 0.
    """
    conversations = [Conversation(messages=[make_message(), make_message()]) for _ in range(5)]
    history = [make_checkpoint("agent", conversation) for conversation in conversations]
    for checkpoint in history:
        store.save(checkpoint)
    store.remove("agent", [history[0].id, history[1].id])
    return history[2:]


def test_an_agent_rewritten_after_the_snapshot_of_a_sweep_stays_intact(
    store: RedisCheckpointStore,
) -> None:
    _, *staying = with_a_trimmed_log(store)
    plans = judged(store, Rules(keep=2), retry=0)
    assert store.rewrite("agent", lambda contents: contents)
    assert [one.checkpoints for one in store.apply(plans)] == [1]
    assert store.list("agent") == staying[::-1]
    sweep(store, Rules(keep=2))
    assert store.list("agent") == staying[::-1]
    assert store.snapshots(["agent"])[0].first == 2, "the next sweep trims the log"


def test_an_agent_rewritten_while_it_is_pruned_stays_intact(
    store: RedisCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, *staying = with_a_trimmed_log(store)
    read = store._checkpoints.lines

    def read_and_rewrite(agent_id: str) -> Lines:
        found = read(agent_id)
        monkeypatch.setattr(store._checkpoints, "lines", read)
        assert store.rewrite(agent_id, lambda contents: contents)
        return found

    monkeypatch.setattr(store._checkpoints, "lines", read_and_rewrite)
    assert store.remove("agent", [going.id]) == 1
    assert store.list("agent") == staying[::-1]


def test_no_agent_that_changes_is_lost_from_the_index(
    store: RedisCheckpointStore, redis_url: str
) -> None:
    """If a save happens between any two steps of a sweep, the next sweep visits the agent again."""
    over = threading.Event()
    with ThreadPoolExecutor() as pool:
        sweeping = [pool.submit(sweep_until, redis_url, over.is_set) for _ in range(2)]
        for number in range(30):
            with RedisCheckpointStore.from_url(redis_url) as other:
                other.save(Checkpoint.new("agent", Conversation(), number))
        over.set()
        for future in sweeping:
            future.result(60)
    store.save(Checkpoint.new("agent", Conversation(), 1000))
    store.save(Checkpoint.new("agent", Conversation(), 1001))
    claimed = store.claim_due(10, -1, Schedule.SWEEP)

    assert [name for name, _ in claimed] == ["agent"]
    assert list(store.findings()) == []
