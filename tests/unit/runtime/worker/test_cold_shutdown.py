"""A cold shutdown does not begin while a pool child has received only a part of its task."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ckpt.runtime.process.drain import drain
from celery_ckpt.runtime.worker import bootstep
from tests.support.servers.valkey import wait_until


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Return the signals that Celery's own handler got."""
    got: list[int] = []
    before = signal.signal(signal.SIGQUIT, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGQUIT, before)
    drain.end()


def worker_that_writes(*writers: Any) -> Any:
    pool = SimpleNamespace(_pool=SimpleNamespace(_active_writers=set(writers)))
    return SimpleNamespace(pool_cls=SimpleNamespace(__module__="prefork"), pool=pool)


def test_a_cold_shutdown_waits_until_a_child_has_its_task(stopped: list[int]) -> None:
    worker = worker_that_writes("a task, in part")
    bootstep._chain(worker, signal.SIGQUIT, "SIGQUIT")
    os.kill(os.getpid(), signal.SIGQUIT)
    assert (stopped, drain.is_on) == ([], True)
    worker.pool._pool._active_writers.clear()
    wait_until("the shutdown begins", lambda: stopped == [signal.SIGQUIT])


def test_a_cold_shutdown_does_not_wait_forever(stopped: list[int], monkeypatch) -> None:
    monkeypatch.setattr(bootstep, "_HANDING_SECONDS", 0.1)
    bootstep._chain(worker_that_writes("a child that reads nothing"), signal.SIGQUIT, "SIGQUIT")
    os.kill(os.getpid(), signal.SIGQUIT)
    assert stopped == []
    wait_until("the shutdown begins", lambda: stopped == [signal.SIGQUIT])
