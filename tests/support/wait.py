"""Wait for a condition with a deadline. Tests use this instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from celery import Celery

Answer = TypeVar("Answer")

#: Seconds between two checks of a condition.
POLL = 0.01
#: A deadline is for an idle machine. It is multiplied by this, for a machine that is shared. It only
#: bounds a hang.
BUSY = 4


def until(condition: Callable[[], Answer], deadline: float, what: str) -> Answer:
    """Check the condition every 10 ms until it is true, and return its value.

    Fail after ``BUSY`` times ``deadline`` seconds, with ``what`` and the last value.
    """
    end = time.monotonic() + BUSY * deadline
    while not (answer := condition()):
        waited = BUSY * deadline
        assert time.monotonic() < end, f"timed out after {waited} s: {what} (last: {answer!r})"
        time.sleep(POLL)
    return answer


def stored_result(app: Celery, task_id: str, state: str) -> Any:
    """Wait until a task is in this state in the result backend, and return its result.

    ``AsyncResult.get`` may return an earlier outcome of a run that was resumed, if the test has waited
    for that one too: a message about it can arrive late.
    """
    until(lambda: app.AsyncResult(task_id).state == state, 10, f"{task_id} is {state}")
    return app.AsyncResult(task_id).result
