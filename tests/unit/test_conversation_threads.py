"""Conversations that several threads share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_ckpt import Conversation, Message


def texts(conversation: Conversation) -> list[str]:
    return [message.text for message in conversation]


@pytest.fixture
def impatient_threads() -> Iterator[ThreadPoolExecutor]:
    """Make threads switch after a few instructions, so that a race happens and is not only possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(8) as threads:
        yield threads
    sys.setswitchinterval(interval)


def test_threads_can_append_to_copies_of_one_conversation(
    impatient_threads: ThreadPoolExecutor,
) -> None:
    def grow(name: int, own: Conversation) -> tuple[int, Conversation]:
        for number in range(200):
            own.append(Message.user(f"{name}.{number}"))
        return name, own

    start = Conversation(messages=[Message.user("a")])
    work = [impatient_threads.submit(grow, name, start.copy()) for name in range(8)]
    for name, own in (future.result() for future in work):
        assert texts(own) == ["a", *(f"{name}.{number}" for number in range(200))]
    assert texts(start) == ["a"]


def test_threads_can_append_to_the_same_conversation(impatient_threads: ThreadPoolExecutor) -> None:
    shared = Conversation()
    wanted = [Message.user(str(number)) for number in range(2000)]
    list(impatient_threads.map(shared.append, wanted))
    assert len(shared) == 2000
    assert sorted(texts(shared), key=int) == [message.text for message in wanted]


def test_a_snapshot_taken_during_concurrent_appends_is_a_prefix(
    impatient_threads: ThreadPoolExecutor,
) -> None:
    live = Conversation()

    def append_and_copy(number: int) -> Conversation:
        live.append(Message.user(str(number)))
        return live.copy()

    for snapshot in impatient_threads.map(append_and_copy, range(500)):
        assert snapshot.messages == live.messages[: len(snapshot)]
