"""The files and functions that a save to Redis visits. ``tests/support/walk.py`` counts the rest.

The limits are what a save takes today: lower them when the path gets shorter.
"""

from __future__ import annotations

from celery_ckpt import RedisCheckpointStore
from tests.support.walk import Walk, Worker, emit, save, walk


def assert_at_most(found: Walk, files: int, functions: int) -> None:
    listed = "\n".join(found.visited)
    assert found.files <= files, f"{found}:\n{listed}"
    assert found.functions <= functions, f"{found}:\n{listed}"


def test_an_emit_that_saves_stays_within_its_frame_budget(redis_url: str) -> None:
    with Worker(redis_url, redis_url) as worker:
        assert_at_most(emit(worker), files=15, functions=40)


def test_a_save_stays_within_its_frame_budget(store: RedisCheckpointStore) -> None:
    assert_at_most(save(store), files=9, functions=19)


def test_a_walk_counts_only_the_package() -> None:
    found = walk(lambda: [str(number) for number in range(3)])
    assert (found.files, found.functions, found.hops, found.depth) == (0, 0, 0, 0)
