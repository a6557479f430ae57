from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_ckpt import Checkpoint, CheckpointStore, open_store
from celery_ckpt.errors import LeaseLost
from tests.support.redis_agents import call_every_method, work
from tests.support.servers.valkey import Guarded, guarded, wait_until


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path) as servers:
        yield servers


@pytest.fixture
def store(servers: Guarded) -> Iterator[CheckpointStore]:
    with open_store(servers.url) as store:
        yield store


def test_a_store_continues_after_a_failover_with_everything_the_replica_had(
    servers: Guarded, store: CheckpointStore
) -> None:
    call_every_method(store, "somebody else")
    lease = store.acquire("agent", "me", 60)
    saved = work(store, "agent", 3, lease)
    wait_until("the replica has every write", servers.replica_holds_all)
    servers.lose_master()
    saved += work(store, "agent", 2, lease)
    assert servers.is_master(servers.replica)
    assert store.list("agent") == saved[::-1]
    assert store.holder("agent") == lease


def test_a_writer_whose_last_saves_never_reached_the_promoted_replica_still_saves_exactly(
    servers: Guarded, store: CheckpointStore
) -> None:
    kept = work(store, "agent", 3)
    wait_until("the replica has every write", servers.replica_holds_all)
    # The connection of the frozen replica is closed, so that nothing reaches it.
    servers.replica.signal(signal.SIGSTOP)
    with servers.master.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    lost_lease = store.acquire("agent", "me", 60)
    lost = work(store, "agent", 2, lost_lease)
    servers.lose_master()
    servers.replica.signal(signal.SIGCONT)

    conversation = lost[-1].conversation
    conversation.append({"role": "user", "content": "and now?"})
    after = Checkpoint.new("agent", conversation, 6)
    with pytest.raises(LeaseLost):
        store.save(after, lost_lease)
    new_lease = store.acquire("agent", "another", 60)
    assert new_lease.token == lost_lease.token
    with pytest.raises(LeaseLost):
        store.save(after, lost_lease)
    store.save(after, new_lease)
    assert store.list("agent") == [after, *kept[::-1]]
    assert store.load(lost[0].id) is None
