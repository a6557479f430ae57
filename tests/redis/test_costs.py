"""The cost of each operation, in round trips, bytes and commands of the server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from celery_ckpt import Checkpoint, RedisCheckpointStore
from celery_ckpt.errors import LeaseLost
from celery_ckpt.records import Lease, Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.testing.contract.fixtures import sweep
from celery_ckpt.testing.factories import make_step
from tests.support.redis_agents import checkpoint, line, talk, work
from tests.support.servers.proxies import Proxy
from tests.support.servers.valkey import Valkey


def log_length(valkey: Valkey, agent_id: str) -> int:
    with valkey.client() as client:
        return client.llen(f"ckpt:{{{agent_id}}}:log")


def trips_of(wire: Proxy, action: Callable[[], object]) -> int:
    wire.reset()
    action()
    return wire.trips


@pytest.fixture
def saved(far_store: RedisCheckpointStore) -> list[Checkpoint]:
    """Return the checkpoints of an agent that the store knows, on a server that knows the scripts."""
    far_store.save(checkpoint("first agent"))
    far_store.release(far_store.acquire("first agent", "me", 30))
    far_store.record_step(make_step("second agent"))
    lease = far_store.acquire("agent", "somebody", 30)
    saved = work(far_store, "agent", 3, lease)
    far_store.release(lease)
    return saved


def test_a_save_is_one_round_trip(far_store, wire: Proxy, saved: list[Checkpoint]) -> None:
    conversation = saved[-1].conversation
    conversation.append(line("agent", 4))
    fourth = Checkpoint.new("agent", conversation, 4)
    assert trips_of(wire, lambda: far_store.save(fourth)) == 1


def test_loading_the_latest_is_one_round_trip(far_store, wire: Proxy, saved) -> None:
    assert trips_of(wire, lambda: far_store.load_latest("agent")) == 1


def test_loading_by_id_is_two_round_trips(far_store, wire: Proxy, saved) -> None:
    assert trips_of(wire, lambda: far_store.load(saved[0].id)) == 2


def test_acquiring_and_renewing_a_lease_take_one_round_trip_each(far_store, wire: Proxy, saved) -> None:
    leases = []
    assert trips_of(wire, lambda: leases.append(far_store.acquire("agent", "me", 30))) == 1
    far_store.renew(leases[0], 30)
    assert trips_of(wire, lambda: far_store.renew(leases[0], 30)) == 1
    assert trips_of(wire, lambda: far_store.release(leases[0])) == 1


def test_a_first_write_is_one_round_trip_with_its_index_entries(far_store, wire: Proxy, saved) -> None:
    another = checkpoint("another agent")
    assert trips_of(wire, lambda: far_store.save(another)) == 1
    assert trips_of(wire, lambda: far_store.record_step(make_step("a third agent"))) == 1
    assert trips_of(wire, lambda: far_store.acquire("a fourth agent", "me", 30)) == 1
    assert far_store.claim_due(10, 60, Schedule.SWEEP) != []
    assert {"another agent", "a third agent", "a fourth agent"} <= set(far_store.agents())


def test_a_first_save_after_a_first_step_is_one_round_trip(far_store, wire: Proxy, saved) -> None:
    far_store.record_step(make_step("another agent"))
    assert trips_of(wire, lambda: far_store.save(checkpoint("another agent"))) == 1


def test_a_step_and_a_checkpoint_take_one_round_trip(far_store, wire: Proxy, saved) -> None:
    conversation = saved[-1].conversation
    far_store.record_and_save(make_step("third agent"), checkpoint("third agent"))  # loads the scripts

    def both(agent_id: str) -> None:
        conversation.append(line(agent_id, len(conversation)))
        grown = Checkpoint.new(agent_id, conversation, len(conversation))
        assert far_store.record_and_save(make_step(agent_id), grown) is None

    both("agent")
    assert trips_of(wire, lambda: both("agent")) == 1
    assert trips_of(wire, lambda: both("another agent")) == 1


def test_a_checkpoint_whose_basis_is_gone_is_saved_after_its_step(
    store: RedisCheckpointStore, far_store, wire: Proxy, saved
) -> None:
    conversation = saved[-1].conversation
    conversation.append(line("agent", 4))
    store.prune("agent", keep=0)
    step, fourth = make_step("agent"), Checkpoint.new("agent", conversation, 4)
    assert far_store.record_and_save(step, fourth) is None
    assert far_store.steps("agent", step.run_id) == [step]
    assert far_store.list("agent") == [fourth]


def test_a_refused_first_write_leaves_no_index_entry(far_store, valkey: Valkey, saved) -> None:
    lost = Lease(agent_id="x", token=1, nonce="n", owner="me", expires_at=datetime.now(UTC))
    with pytest.raises(LeaseLost):
        far_store.record_step(make_step("x"), lost)
    with pytest.raises(LeaseLost):
        far_store.save(checkpoint("x"), lost)
    with valkey.client() as client:
        assert [key for key in client.scan_iter() if b"{x}" in key] == []
        entries = [client.zrange(key, 0, -1) for key in client.scan_iter(_type="zset")]
    assert not any(name.endswith(b"x") for names in entries for name in names)


def test_a_save_after_a_load_by_a_new_process_is_one_round_trip(far_store, wire: Proxy, saved) -> None:
    with RedisCheckpointStore.from_url(wire.url) as other:
        conversation = other.load_latest("agent").conversation
        conversation.append(line("agent", 4))
        fourth = Checkpoint.new("agent", conversation, 4)
        assert trips_of(wire, lambda: other.save(fourth)) == 1


def test_a_save_late_in_a_conversation_sends_no_more_than_an_early_one(
    far_store: RedisCheckpointStore, wire: Proxy, valkey: Valkey
) -> None:
    def bytes_of_next_save() -> int:
        wire.reset()
        work(far_store, "agent", 1)
        return wire.bytes_sent

    work(far_store, "agent", 4)
    early = bytes_of_next_save()
    work(far_store, "agent", 194)
    late = bytes_of_next_save()
    assert late <= early + 30  # some numbers have more digits
    assert log_length(valkey, "agent") == 200


def test_a_writer_that_never_saw_the_agent_does_not_write_its_messages_again(
    store: RedisCheckpointStore, valkey: Valkey, redis_url: str
) -> None:
    work(store, "agent", 10)
    with RedisCheckpointStore.from_url(redis_url) as cold:
        continued = Checkpoint.new("agent", talk("agent", 11), 11)
        cold.save(continued)
    assert log_length(valkey, "agent") == 11
    assert store.load_latest("agent") == continued


def test_a_compaction_writes_only_what_is_new(store: RedisCheckpointStore, valkey: Valkey) -> None:
    conversation = work(store, "agent", 10)[-1].conversation
    summary = line("agent", 1000)
    conversation.replace([summary, *conversation.messages[5:]])
    compacted = Checkpoint.new("agent", conversation, 11)
    store.save(compacted)
    assert log_length(valkey, "agent") == 11
    assert store.load_latest("agent") == compacted


def test_a_conversation_that_diverges_writes_only_what_is_new_in_one_round_trip(
    far_store: RedisCheckpointStore, wire: Proxy, saved: list[Checkpoint], valkey: Valkey
) -> None:
    conversation, before = saved[-1].conversation, log_length(valkey, "agent")
    conversation.extend_to([*conversation.messages[:2], line("agent", 1000)])
    diverged = Checkpoint.new("agent", conversation, 4)
    assert trips_of(wire, lambda: far_store.save(diverged)) == 1
    assert log_length(valkey, "agent") == before + 1
    assert far_store.load_latest("agent") == diverged


def test_pruning_trims_the_log(store: RedisCheckpointStore, valkey: Valkey) -> None:
    work(store, "agent", 10)
    fresh = Checkpoint.new("agent", talk("someone else", 3), 11)
    store.save(fresh)
    assert log_length(valkey, "agent") == 13
    assert store.prune("agent", keep=1) == 10
    assert log_length(valkey, "agent") == 3
    more = work(store, "agent", 2)
    assert store.list("agent") == [*reversed(more), fresh]


def test_pruning_everything_deletes_the_log(store: RedisCheckpointStore, valkey: Valkey) -> None:
    work(store, "agent", 10)
    assert store.prune("agent", keep=0) == 10
    assert log_length(valkey, "agent") == 0
    assert store.load_latest("agent") is None
    again = work(store, "agent", 2)
    assert store.list("agent") == again[::-1]


def test_only_the_first_save_after_a_sweep_writes_an_index(far_store, wire: Proxy, saved) -> None:
    for _ in range(2):
        sweep(far_store)
        assert trips_of(wire, lambda: work(far_store, "agent", 1)) == 1 + 2  # it loads the latest first
        assert trips_of(wire, lambda: work(far_store, "agent", 1)) == 1 + 1


def test_a_sweep_with_nothing_to_do_is_one_round_trip(far_store, wire: Proxy, saved) -> None:
    sweep(far_store)
    assert trips_of(wire, lambda: far_store.claim_due(100, 60, Schedule.SWEEP)) == 1


def test_a_sweep_takes_as_many_round_trips_for_ten_agents_as_for_one(far_store, wire: Proxy) -> None:
    def trips_for(agents: int) -> int:
        for number in range(agents):
            work(far_store, f"agent-{number}", 3)
        return trips_of(wire, lambda: sweep(far_store, Rules(keep=1)))

    assert trips_for(1) > 0  # the server loads the scripts
    # The client splits longer pipelines into pieces, which the proxy would count as several round
    # trips.
    assert trips_for(1) == trips_for(10) == 4


def bytes_received(valkey: Valkey, action: Callable[[], object]) -> int:
    with valkey.client() as client:
        before = client.info("stats")["total_net_output_bytes"]
        action()
        # The reply to INFO is counted too, after it was made.
        return client.info("stats")["total_net_output_bytes"] - before


def test_a_page_of_a_long_conversation_reads_only_that_page(
    far_store, wire: Proxy, valkey: Valkey
) -> None:
    long = Checkpoint.new("agent", talk("agent", 5000), 1, state={"large": "x" * 100_000})
    far_store.save(long)
    page = long.conversation.messages[2000:2050]
    far_store.messages(long.id, 0, 1)
    assert trips_of(wire, lambda: far_store.messages(long.id, 2000, 2050)) == 2
    with valkey.client() as client:
        own = len(str(client.info("stats"))) + 1000
    read = bytes_received(valkey, lambda: far_store.messages(long.id, 2000, 2050))
    assert read < own + 2 * sum(len(message.to_json()) for message in page)
    with valkey.client() as client:
        for other in (0, 1999, 2050, 4999):
            client.lset("ckpt:{agent}:log", other, "damaged")
    assert far_store.messages(long.id, 2000, 2050).messages == page


def test_a_page_of_a_history_returns_only_that_page(far_store, wire: Proxy, valkey: Valkey) -> None:
    saved = [
        Checkpoint.new("agent", talk("agent", 1), number, state={"large": "x" * 5000})
        for number in range(1200)
    ]
    for one in saved:
        far_store.save(one)
    newest = far_store.history("agent", limit=10)
    assert [info.id for info in newest] == [one.id for one in saved[:-11:-1]]
    whole = bytes_received(valkey, lambda: far_store.history("agent"))
    read = bytes_received(valkey, lambda: far_store.history("agent", limit=10, before=newest[-1].seq))
    assert whole > 1200 * 5000
    # A script reads about a hundred of these records, and returns the newest ten of them.
    assert read < whole / 5
