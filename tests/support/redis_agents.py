"""Agents for the tests of the Redis store. Their messages depend only on name and iteration."""

from __future__ import annotations

from typing import Any

from redis import Redis

from celery_ckpt import Checkpoint, Conversation, Message
from celery_ckpt.clock import system_clock
from celery_ckpt.records import RunRecord, RunStatus, Step
from celery_ckpt.retention.report import PrunePlan
from celery_ckpt.store import CheckpointStore


def line(agent_id: str, number: int, size: int = 40) -> Message:
    """Return the message of an agent in one iteration."""
    return Message.assistant(f"{agent_id} says {number} ".ljust(size, "."))


def talk(agent_id: str, length: int) -> Conversation:
    """Return a conversation with this number of messages."""
    return Conversation(messages=[line(agent_id, number) for number in range(1, length + 1)])


def checkpoint(agent_id: str, iteration: int = 1, **fields: Any) -> Checkpoint:
    """Return a checkpoint with one message per iteration."""
    return Checkpoint.new(agent_id, talk(agent_id, iteration), iteration, **fields)


def work(store: CheckpointStore, agent_id: str, iterations: int, lease: Any = None) -> list[Checkpoint]:
    """Continue an agent, and save after each iteration; return the checkpoints, oldest first."""
    latest = store.load_latest(agent_id)
    conversation = latest.conversation if latest else Conversation()
    saved = []
    for iteration in range(len(conversation) + 1, len(conversation) + iterations + 1):
        conversation.append(line(agent_id, iteration))
        saved.append(Checkpoint.new(agent_id, conversation, iteration, state={"at": iteration}))
        store.save(saved[-1], lease)
    return saved


def step(agent_id: str, key: str = "call-1", **fields: Any) -> Step:
    return Step(agent_id=agent_id, run_id="run-1", key=key, **{"value": {"answer": 42}, **fields})


def run(agent_id: str, run_id: str = "run-1", **fields: Any) -> RunRecord:
    return RunRecord(agent_id=agent_id, run_id=run_id, created_at=system_clock.now(), **fields)


def call_every_method(store: CheckpointStore, agent_id: str) -> None:
    """Call every method of a store for one agent, and assert the results."""
    first, second, third = work(store, agent_id, 3)
    assert store.load_latest(agent_id) == third
    assert store.load(second.id) == second
    assert store.list(agent_id) == [third, second, first]
    assert [info.id for info in store.history(agent_id)] == [third.id, second.id, first.id]
    foreign = third.model_copy(update={"id": f"an id of its own, {agent_id}"[:512]})
    store.save(foreign)
    assert store.load(foreign.id) == foreign
    lease = store.renew(store.acquire(agent_id, "me", 30), 60)
    [lease] = store.renew_many([lease], 60)
    assert store.holder(agent_id) == lease
    store.record_step(step(agent_id), lease)
    assert store.steps(agent_id, "run-1") == [step(agent_id)]
    assert store.drop_steps(agent_id, "run-1", lease=lease) == 1
    record = run(agent_id)
    assert store.add_run(record)
    changed = record.model_copy(update={"attempts": 1})
    store.update_run(changed, lease)
    assert store.run(agent_id, "run-1") == changed
    assert store.runs(agent_id) == [changed]
    assert store.last_run(agent_id) == changed
    assert store.run_outlines(agent_id, limit=1) == [changed.outline]
    assert store.page("queued", prefix=agent_id).agents == [store.outline(agent_id)]
    assert store.release(lease)
    failed = changed.model_copy(update={"status": RunStatus.FAILED, "ended_at": system_clock.now()})
    assert store.settle_run(failed) is None
    take_turns(store, agent_id)
    [snapshot] = store.snapshots([agent_id])
    [pruned] = store.apply([PrunePlan(snapshot, runs_before=system_clock.now())])
    assert (pruned.runs, store.run(agent_id, "run-2")) == (2, None)
    assert agent_id in store.agents()
    assert store.remove(agent_id, [first.id]) == 1
    assert store.prune(agent_id, keep=1) == 2
    assert store.delete(agent_id) == 1
    assert agent_id not in store.agents()
    assert store.outline(agent_id) is None
    assert store.page(prefix=agent_id).agents == []
    assert store.was_deleted("run-3")
    assert store.start_run(run(agent_id, "run-3"), "me", 30, recorded=True).is_deleted
    due_at = store.schedule(agent_id, 0)
    assert store.unschedule({agent_id: due_at})


def markers(client: Redis) -> dict[bytes, int]:
    """Return the markers of deleted runs, with the seconds until they expire."""
    return {key: client.ttl(key) for key in client.scan_iter("ckpt:deleted:*")}


def take_turns(store: CheckpointStore, agent_id: str) -> None:
    """Start and end two runs of an agent in turn, and claim it as the watchdog does."""
    start = store.start_run(run(agent_id, "run-2"), "me", 30)
    assert store.start_run(run(agent_id, "run-3"), "me", 30).lease is None
    assert store.activity(agent_id).active == "run-2"
    lease = store.cancel_run(agent_id, "run-2", "me", 30)
    cancelled = store.run(agent_id, "run-2")
    assert (lease.token, cancelled.status) == (start.lease.token + 1, "cancelled")
    assert store.settle_run(cancelled, lease).run_id == "run-3"
    assert store.add_run(run(agent_id, "run-4"))
    assert store.pass_turn(agent_id, "run-3", 0).run_id == "run-4"
    start = store.start_run(run(agent_id, "run-3"), "me", 30)
    failed = store.run(agent_id, "run-4").model_copy(update={"status": RunStatus.FAILED})
    assert store.settle_run(failed) is None
    assert store.release(start.lease, run=start.run)
    due_at = store.schedule(agent_id, 0)
    [(name, later)] = store.claim_due(1, 30)
    assert (name, later > due_at) == (agent_id, True)
    moved = store.reschedule({agent_id: later}, 60)
    assert store.unschedule(moved) == 1
