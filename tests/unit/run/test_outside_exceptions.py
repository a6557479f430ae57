"""Exceptions that are raised from outside at any point, like a soft time limit in a sync body."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import celery_ckpt
from tests.support.provider_agents import SHAPES, calls_of
from tests.support.run_host import Attempts

_PACKAGE = Path(celery_ckpt.__file__).parent
OWN = {_PACKAGE, _PACKAGE / "run"}


class TimeIsUp(Exception):
    pass


class Interrupted:
    """Calls a function, and raises an exception where the n-th function of the package is entered."""

    def __init__(self, fn: Callable[..., Any], n: int) -> None:
        self._fn, self._left = fn, n

    @property
    def is_over(self) -> bool:
        return self._left < 0

    def __call__(self, *args: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return self._fn(*args)
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> None:
        """Trace every function that is entered: that is where Python lets signal handlers run."""
        code = frame.f_code
        is_function = (
            not code.co_flags & inspect.CO_GENERATOR
        )  # generators are also entered to be closed
        if is_function and Path(code.co_filename).parent in OWN and not self.is_over:
            self._left -= 1
            if self.is_over:
                raise TimeIsUp


def interrupted(shape: str, method: str, n: int) -> tuple[bool, bool, bool]:
    """Interrupt at this point. Return whether it was interrupted, recorded, and added."""
    attempts = Attempts(lambda run: None)
    run = attempts.attempt()
    model = lambda: SHAPES[shape]("x", [("call_0", "{}")])  # noqa: E731
    if method == "tool":
        [call] = calls_of(run.llm(model))
    steps, messages = len(attempts.store.steps("a", "run")), len(run.conversation)
    run._calls._record = trying = Interrupted(run._calls._record, n)  # type: ignore[assignment]
    with suppress(TimeIsUp):
        run.llm(model) if method == "llm" else run.tool(call, lambda: "found")
    is_recorded = len(attempts.store.steps("a", "run")) > steps
    return trying.is_over, is_recorded, len(run.conversation) > messages


@pytest.mark.parametrize("method", ["llm", "tool"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_recorded_result_is_appended_wherever_it_is_interrupted(shape: str, method: str) -> None:
    places = takewhile(lambda tried: tried[0], (interrupted(shape, method, n) for n in range(1000)))
    added = [(is_recorded, is_added) for _, is_recorded, is_added in places]
    assert 5 < len(added) < 1000
    # Only an interruption before the start leaves the result neither recorded nor appended.
    assert added == [(False, False), *[(True, True)] * (len(added) - 1)]


def test_a_call_interrupted_while_it_is_recorded_is_not_repeated() -> None:
    made: list[int] = []
    attempts = Attempts(lambda run: None)
    run = attempts.attempt()
    record = attempts.host.record

    def late(step: Any, paid: Any, call: Any) -> None:
        record(step, paid, call)
        attempts.host.record = record  # type: ignore[method-assign]
        raise TimeIsUp

    attempts.host.record = late  # type: ignore[method-assign]
    count = lambda: made.append(1) or len(made)  # noqa: E731
    with pytest.raises(TimeIsUp):
        run.step("count", count)
    assert run.step("count", count) == len(made) == 1
