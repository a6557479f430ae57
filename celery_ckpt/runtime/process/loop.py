"""The event loop of this process, for async bodies.

There is one loop for the whole life of the process, not one for each task: pooled HTTP clients do not
survive the loop in which they were made. It runs in a thread of its own, and a worker's thread waits
for its body, so that a hundred agents of a threads pool share the loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, TypeVar

from celery_ckpt.errors import ConfigurationError, RunMisused
from celery_ckpt.run.current import run_if_any
from celery_ckpt.runtime.current import current_attempt

R = TypeVar("R")
#: How long a cancelled body may take to clean up.
_CLEAN_UP_SECONDS = 5.0
_NEEDS_THREADS = (
    "Async bodies need threads, which the gevent and eventlet pools replace. Use the prefork, threads "
    "or solo pool for this task, or write its body without async."
)
_CALLED_ON_THE_LOOP = (
    "An async agent task was called directly from the body of another one, which would block the event "
    "loop that both need. Use `await asyncio.to_thread(task, ...)`."
)


class _Loop:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                name, of_loop = "celery_ckpt-loop", (self._loop,)
                threading.Thread(target=_forever, args=of_loop, name=name, daemon=True).start()
            return self._loop


def _forever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # The body that raised it gets it as well. The other bodies continue.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


_loop = _Loop()


class _Body:
    """A coroutine on the loop. It has ended when it has cleaned up, also after a cancellation."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._over: Future[Any] = Future()
        self._task: asyncio.Task[Any] | None = None
        loop.call_soon_threadsafe(self._begin, coroutine)

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        # asyncio's CancelledError is not an Exception, and to Celery a cancelled task has failed.
        error = CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._over.set_result(task.result())
        else:
            self._over.set_exception(error)

    def result(self, seconds: float | None = None) -> Any:
        """Wait until it ends, and return its result."""
        return self._over.result(seconds)

    def cancel(self) -> None:
        """Cancel it soon."""
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())


def run_coroutine(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a body on the loop and wait for it.

    An interruption of the wait (a soft time limit, a revocation, a cold shutdown) cancels the body.

    Raises:
        ConfigurationError: the pool has greenlets instead of threads.
        RunMisused: the loop itself would have to wait.
    """
    from kombu.utils.compat import detect_environment

    if detect_environment() != "default":
        coroutine.close()
        raise ConfigurationError(reason=_NEEDS_THREADS)
    loop = _loop.get()
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        raise RunMisused(reason=_CALLED_ON_THE_LOOP)
    body, attempt = _Body(_whole(coroutine), loop), current_attempt()
    if attempt is not None:
        # An attempt that lost its lease cannot write any more, so its body is cancelled.
        attempt.held.on_loss = body.cancel
    try:
        value: R = body.result()
        return value
    except BaseException:
        body.cancel()
        # No other attempt may begin while this body is still cleaning up.
        with suppress(FutureTimeout, Exception):
            body.result(_CLEAN_UP_SECONDS)
        raise


async def _whole(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a body, and end the calls that it leaves unfinished."""
    run, is_cancelled = run_if_any(), False
    if run is not None:
        run.begin_body()
    try:
        return await coroutine
    except asyncio.CancelledError:
        is_cancelled = True
        raise
    finally:
        if run is not None:
            await run.finish(cancel=is_cancelled)
