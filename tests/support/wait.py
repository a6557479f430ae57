"""Waiting for a condition with a deadline, which is what tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from celery import Celery

Answer = TypeVar("Answer")

#: Seconds between two looks.
POLL = 0.01
#: A deadline is what a machine needs at most that has nothing else to do; one that is shared gets so
#: many times as much. It only bounds a hang.
BUSY = 4


def until(condition: Callable[[], Answer], deadline: float, what: str) -> Answer:
    """Ask every 10 ms until the answer is true, and return it.

    After ``deadline`` seconds, or longer on a busy machine, it fails, saying what was awaited and what
    the last answer was.
    """
    end = time.monotonic() + BUSY * deadline
    while not (answer := condition()):
        waited = BUSY * deadline
        assert time.monotonic() < end, f"waited {waited} s in vain: {what} (last: {answer!r})"
        time.sleep(POLL)
    return answer


def stored_result(app: Celery, task_id: str, state: str) -> Any:
    """What the result backend holds of a task, once that is in this state.

    Whoever waits for a run that was resumed in the way of ``AsyncResult.get``, and has waited for it
    before, may be told the earlier outcome: Celery's news of it can come late.
    """
    until(lambda: app.AsyncResult(task_id).state == state, 10, f"{task_id} is {state}")
    return app.AsyncResult(task_id).result
