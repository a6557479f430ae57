"""Something happens to the agent between two round trips of an operation, at each possible point."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_ckpt import Checkpoint, CheckpointStore, RedisCheckpointStore
from tests.support.redis_agents import line, talk, work
from tests.support.servers.proxies import Proxy

#: More round trips than any of the operations needs.
TRIPS = range(1, 8)


class Agent:
    """An agent with six checkpoints. The newer three share no message with the older ones."""

    def __init__(self, store: CheckpointStore, agent_id: str) -> None:
        self.store, self.agent_id = store, agent_id
        self.saved = work(store, agent_id, 3)
        self.save(Checkpoint.new(agent_id, talk("somebody else", 2), 4))
        self.saved += work(store, agent_id, 2)

    def save(self, checkpoint: Checkpoint) -> None:
        self.saved.append(checkpoint)
        self.store.save(checkpoint)

    def save_on_the_oldest(self) -> None:
        oldest = self.store.load(self.saved[0].id)
        if oldest is not None:
            self.save(self.after(oldest))

    def after(self, checkpoint: Checkpoint) -> Checkpoint:
        conversation = checkpoint.conversation
        conversation.append(line(self.agent_id, 1000))
        return Checkpoint.new(self.agent_id, conversation, 1000)

    def start_over(self) -> None:
        self.store.delete(self.agent_id)
        self.saved += work(self.store, self.agent_id, 6)


HAPPENINGS: dict[str, Callable[[Agent], object]] = {
    "a save based on the latest": lambda it: it.save(it.after(it.saved[-1])),
    "a save based on the oldest": Agent.save_on_the_oldest,
    "the removal of the latest": lambda it: it.store.remove(it.agent_id, [it.saved[-1].id]),
    "the removal of the oldest": lambda it: it.store.remove(it.agent_id, [it.saved[0].id]),
    "a prune": lambda it: it.store.prune(it.agent_id, keep=2),
    "a prune of everything": lambda it: it.store.prune(it.agent_id, keep=0),
    "a deletion": lambda it: it.store.delete(it.agent_id),
    "a deletion and a new start": Agent.start_over,
}


def save_what_a_cold_writer_has(store: CheckpointStore, it: Agent) -> None:
    it.saved.append(Checkpoint.new(it.agent_id, talk(it.agent_id, 5), 5))
    store.save(it.saved[-1])


def read_in_every_way(store: CheckpointStore, it: Agent) -> None:
    known = {one.id: one for one in it.saved}
    assert store.load(it.saved[0].id) in (it.saved[0], None)
    assert store.load_latest(it.agent_id) in (None, *it.saved)
    for one in store.list(it.agent_id):
        assert one == known.get(one.id, one)


OPERATIONS: dict[str, Callable[[CheckpointStore, Agent], object]] = {
    "prune": lambda store, it: store.prune(it.agent_id, keep=2),
    "prune everything": lambda store, it: store.prune(it.agent_id, keep=0),
    "remove": lambda store, it: store.remove(it.agent_id, [one.id for one in it.saved[:3]]),
    "remove the latest": lambda store, it: store.remove(it.agent_id, [it.saved[-1].id]),
    "delete": lambda store, it: store.delete(it.agent_id),
    "save": save_what_a_cold_writer_has,
    "read": read_in_every_way,
}


@pytest.mark.parametrize("happening", HAPPENINGS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_stored_data_is_exact_whatever_happens_concurrently(
    store: RedisCheckpointStore, wire: Proxy, operation: str, happening: str
) -> None:
    for trip in TRIPS:
        it = Agent(store, f"agent {trip}")
        # A separate store for each: it must know nothing about the stored data of the agent.
        with RedisCheckpointStore.from_url(wire.url) as cold:
            cold.load_latest("no-such-agent")
            happened = wire.before(trip, lambda it=it: HAPPENINGS[happening](it))
            OPERATIONS[operation](cold, it)
        if not happened.done():
            wire.act()
        happened.result()
        assert_exact(store, it)


def assert_exact(store: CheckpointStore, it: Agent) -> None:
    known = {one.id: one for one in it.saved}
    stored = store.list(it.agent_id)
    assert all(one == known[one.id] for one in stored)
    assert store.load_latest(it.agent_id) == (stored[0] if stored else None)
    assert all(store.load(one.id) == one for one in stored)
    assert (it.agent_id in store.agents()) or not stored
