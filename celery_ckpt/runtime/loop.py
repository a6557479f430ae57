"""The event loop of this process, for async bodies: one, as old as the process.

Never one for each task: pooled HTTP clients die with the loop in which they were made. It runs in a
thread of its own; a worker's thread waits for its body's end, so that a hundred agents of a threads
pool share the loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, TypeVar

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.runtime.current import current_attempt

R = TypeVar("R")
#: How long a cancelled body may take to clean up.
_CLEAN_UP_SECONDS = 5.0


class _Loop:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                thread = threading.Thread(target=self._loop.run_forever, name="celery_ckpt-loop")
                thread.daemon = True
                thread.start()
            return self._loop


_loop = _Loop()


def run_coroutine(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a body on the loop and wait for it.

    Whatever interrupts the wait (a soft time limit, a revocation, a cold shutdown) cancels the body.
    """
    _refuse_greenlets(coroutine)
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop.get())
    attempt = current_attempt()
    if attempt is not None:
        # Whoever lost the lease may not write any more: there is no use in going on.
        attempt.hold.on_loss = future.cancel
    try:
        return future.result()
    except BaseException:
        _cancel(future)
        raise


def _cancel(future: Future[Any]) -> None:
    if not future.done():
        future.cancel()
        with suppress(FutureTimeout, asyncio.CancelledError, Exception):
            future.result(_CLEAN_UP_SECONDS)


def _refuse_greenlets(coroutine: Coroutine[Any, Any, Any]) -> None:
    from kombu.utils.compat import detect_environment

    if detect_environment() != "default":
        coroutine.close()
        raise ConfigurationError(
            reason="Async bodies need threads, which the gevent and eventlet pools replace. Use the "
            "prefork, threads or solo pool for this task, or write its body without async."
        )
