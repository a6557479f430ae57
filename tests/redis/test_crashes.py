"""SIGKILL in the middle of a save: everything acknowledged is there, and the latest checkpoint
is complete.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_ckpt import CheckpointStore, RedisCheckpointStore, open_store
from tests.support.redis_agents import talk
from tests.support.redis_writers import another_process, save_for_ever
from tests.support.servers.valkey import APPEND_ONLY, Valkey, wait_until

KILLED_CLIENTS = 30
KILLED_SERVERS = 6


@pytest.fixture
def save_log(tmp_path: Path) -> Path:
    """The file in which the writer records what was acknowledged."""
    path = tmp_path / "acknowledged"
    path.touch()
    return path


def wait_for_more(save_log: Path) -> None:
    """Wait for a few acknowledged saves, so that a kill hits the next one at a random point."""
    more = save_log.stat().st_size + random.randrange(1, 400)
    wait_until("more saves were acknowledged", lambda: save_log.stat().st_size >= more)


def assert_nothing_is_missing(store: CheckpointStore, save_log: Path) -> None:
    acknowledged = save_log.read_text().split()
    history = [info.id for info in reversed(store.history("agent"))]
    # At most one save was in flight, and may be there without having been acknowledged.
    assert [one for one in history if one in set(acknowledged)] == acknowledged
    latest = store.load_latest("agent")
    assert latest.id == history[-1]
    assert latest.conversation == talk("agent", latest.iteration)


def assert_all_are_exact(store: CheckpointStore) -> None:
    listed = store.list("agent")
    assert [one.iteration for one in reversed(listed)] == list(range(1, len(listed) + 1))
    everything = talk("agent", len(listed)).messages
    for one in listed[:: max(1, len(listed) // 50)]:
        assert one.conversation.messages == everything[: one.iteration]


def test_a_client_killed_during_a_save_leaves_no_partial_write(
    store: RedisCheckpointStore, redis_url: str, save_log: Path
) -> None:
    for _ in range(KILLED_CLIENTS):
        with another_process(save_for_ever, redis_url, "agent", save_log) as writer:
            wait_for_more(save_log)
            writer.kill()
        assert_nothing_is_missing(store, save_log)
    assert_all_are_exact(store)


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey", *APPEND_ONLY) as server:
        yield server


def test_a_server_killed_during_saves_has_everything_it_acknowledged(
    lasting: Valkey, save_log: Path
) -> None:
    with (
        open_store(lasting.url) as store,
        another_process(save_for_ever, lasting.url, "agent", save_log) as writer,
    ):
        for _ in range(KILLED_SERVERS):
            wait_for_more(save_log)
            lasting.restart()
        wait_for_more(save_log)
        writer.kill()
        writer.join()
        assert_nothing_is_missing(store, save_log)
        assert_all_are_exact(store)
