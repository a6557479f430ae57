"""Background work: done in order, also after failures, and finished before the process ends."""

from __future__ import annotations

import threading

import pytest
from celery import Celery
from celery.signals import worker_process_shutdown

from celery_ckpt.runtime.attempt import settlement
from celery_ckpt.runtime.process.background import BackgroundThread
from celery_ckpt.runtime.process.context import AppContext


def test_actions_are_done_in_order_in_another_thread() -> None:
    background, done = BackgroundThread(), list[tuple[int, int]]()
    for number in range(5):
        background.do(lambda number=number: done.append((number, threading.get_ident())))

    assert background.finish(60)

    assert [number for number, _ in done] == [0, 1, 2, 3, 4]
    (thread,) = {ident for _, ident in done}
    assert thread != threading.get_ident()


def test_an_action_that_fails_is_logged_and_the_others_are_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    background, done = BackgroundThread(), threading.Event()
    background.do(lambda: 1 / 0)
    background.do(done.set)

    assert background.finish(60)
    assert done.is_set()
    assert "ZeroDivisionError" in caplog.text


def test_finish_waits_no_longer_than_its_seconds() -> None:
    background, hold = BackgroundThread(), threading.Event()
    background.do(hold.wait)

    assert not background.finish(0.01)

    hold.set()
    assert background.finish(60)


def test_finish_returns_at_once_without_actions() -> None:
    assert BackgroundThread().finish(0)


def test_a_process_that_shuts_down_waits_for_background_work() -> None:
    settlement.connect()
    app = Celery(set_as_current=False)
    app.conf.ckpt_store_url = "memory://"
    background, begun, hold, done = (
        AppContext.of(app).background,
        *(threading.Event() for _ in range(3)),
    )
    background.do(lambda: (begun.set(), hold.wait(60), done.set()))
    assert begun.wait(60)
    ending = threading.Thread(target=worker_process_shutdown.send, kwargs={"sender": None})
    ending.start()

    ending.join(0.05)
    assert ending.is_alive()

    hold.set()
    ending.join(60)
    assert not ending.is_alive()
    assert done.is_set()
