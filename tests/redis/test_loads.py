"""The latest checkpoint is read with the newest messages of its log, or with all messages that
it needs.
"""

from __future__ import annotations

import pytest

from celery_ckpt import Checkpoint, RedisCheckpointStore
from celery_ckpt.stores.redis import store as redis_store
from tests.support.redis_agents import line, talk, work
from tests.support.servers.proxies import Proxy
from tests.support.servers.valkey import Valkey

FEW = 3


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that reads only the three newest messages without a script."""
    monkeypatch.setattr(redis_store, "_NEWEST", FEW)


def saved(store: RedisCheckpointStore, *messages: int) -> Checkpoint:
    """Save the latest checkpoint once more, with these of its messages."""
    latest = store.load_latest("agent")
    kept = [latest.conversation.messages[number - 1] for number in messages]
    conversation = latest.conversation.copy()
    conversation.replace(kept)
    checkpoint = Checkpoint.new("agent", conversation, latest.iteration)
    store.save(checkpoint)
    return checkpoint


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("length", range(FEW + 3))
def test_a_conversation_of_any_length_is_read_in_one_round_trip(
    far_store, wire: Proxy, length: int
) -> None:
    latest = Checkpoint.new("agent", talk("agent", length), 1)
    far_store.save(latest)
    far_store.load(latest.id)  # the server knows the script
    wire.reset()

    assert far_store.load_latest("agent") == latest
    assert wire.trips == 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("messages", [(6, 7, 8), (5, 6, 7), (1, 8), (2, 3), (8,), ()], ids=str)
def test_a_part_of_a_long_log_is_read_exactly(store, messages: tuple[int, ...]) -> None:
    work(store, "agent", 8)
    latest = saved(store, *messages)

    assert store.load_latest("agent") == latest
    assert latest.conversation.messages == [line("agent", number) for number in messages]


@pytest.mark.usefixtures("few")
def test_the_rest_of_a_trimmed_log_is_read_exactly(store) -> None:
    work(store, "agent", 8)
    for messages in ((4, 5, 6, 7, 8), (3, 4, 5), (2, 3)):
        latest = saved(store, *messages)
        store.prune("agent", 1)

        assert store.load_latest("agent") == latest


def test_a_load_succeeds_although_the_server_has_lost_the_script(store, valkey: Valkey) -> None:
    *_, latest = work(store, "agent", 3)
    with valkey.client() as client:
        client.script_flush()

    assert store.load_latest("agent") == latest
