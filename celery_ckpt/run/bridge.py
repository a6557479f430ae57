"""The bridge between a run and its body: one implementation for sync and async bodies.

What a run does is written once, as ``async def``. A bridge turns it into what the body sees:

              run(coroutine)             io(fn) of the store          call(fn) of the user
    sync      runs it to its end         calls it                     calls it; must not be async
    async     returns it to the body     in a thread, to its end      calls it, awaits an awaitable
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

from celery_ckpt.run.control_flow import found

T = TypeVar("T")
#: Threads for I/O. They mostly wait for a store; only as many are started as are needed at once.
_MOST_THREADS = 32
#: How many calls of a sync body run in parallel.
_MOST_CALLS = 16
#: A call that has not started.
Call = Callable[[], Coroutine[Any, Any, T]]


class AsyncInSyncBody(TypeError):
    """A sync body was given an async function."""


class Bridge(Protocol):
    """How the coroutines of a run meet its body."""

    #: True if the body is a coroutine.
    is_async: bool

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """Return what a method of the run returns to the body."""
        ...

    async def io(self, fn: Callable[..., T], *args: Any) -> T:
        """Do blocking I/O. Once started, it ends, even if the body is cancelled."""
        ...

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the user and return its result."""
        ...

    async def gather(self, calls: Sequence[Call[T]]) -> list[T]:
        """Make calls in parallel; returns their results in order.

        If some of them raise, the others end first. Then the error that counts most is raised:
        ``Fenced``, other control flow, anything that is not an ``Exception``, or the first one.
        """
        ...

    def under_way(self) -> AbstractContextManager[None]:
        """Return a context in which a call is made."""
        ...

    async def finish(self, *, cancel: bool = False) -> None:
        """Wait until no call runs; with ``cancel``, cancel them first."""
        ...


class SyncBridge:
    """For bodies that are plain functions."""

    is_async = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Drive a coroutine that never really suspends, and return its result."""
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        coroutine.close()
        raise RuntimeError("a coroutine of a sync body was suspended, and nothing can resume it")

    async def io(self, fn: Callable[..., T], *args: Any) -> T:
        """Call it."""
        return fn(*args)

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it. Raises ``AsyncInSyncBody``, a ``TypeError``, for an async function."""
        result = fn(*args, **kwargs)
        if not inspect.isawaitable(result):
            return result
        if inspect.iscoroutine(result):
            result.close()
        while isinstance(fn, functools.partial):
            fn = fn.func
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        raise AsyncInSyncBody(
            f"{name} is async, but the body is not: it returned an awaitable. Make the body "
            "`async def`, or pass a plain function."
        )

    async def gather(self, calls: Sequence[Call[T]]) -> list[T]:
        """Make the calls in threads, each in a copy of this context. One call needs no thread."""
        if len(calls) < 2:
            return [await call() for call in calls]
        errors: list[BaseException | None] = []
        with ThreadPoolExecutor(min(len(calls), _MOST_CALLS), "celery_ckpt-call") as threads:
            made = [
                threads.submit(copy_context().run, lambda own: self.run(own()), call) for call in calls
            ]
            try:
                wait(made)
            except BaseException as interruption:
                # A time limit, or the end of the process. Other calls are left to the next attempt.
                errors = [interruption]
                for call in made:
                    call.cancel()
        errors += [call.exception() for call in made if not call.cancelled()]
        _raise_what_counts_most(errors)
        return [call.result() for call in made]

    def under_way(self) -> AbstractContextManager[None]:
        """Do nothing: the caller waits for its call, as thread pools do."""
        return nullcontext()

    async def finish(self, *, cancel: bool = False) -> None:
        """Do nothing: no call outlives its caller."""


class AsyncBridge:
    """For bodies that are coroutines."""

    is_async = True

    def __init__(self) -> None:
        #: A future for the end of each running call, and the task that makes the call.
        self._calls: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return the coroutine itself, for the body to await."""
        return coroutine

    async def io(self, fn: Callable[..., T], *args: Any) -> T:
        """Call it in a thread, in this context. If the body is cancelled, wait for the call first:
        otherwise it is unknown whether it has written.
        """
        call = functools.partial(copy_context().run, fn, *args)
        work = asyncio.get_running_loop().run_in_executor(_threads(), call)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await _finished(work)
            # That the run must stop counts more than the cancellation.
            error = None if work.cancelled() else work.exception()
            if error is not None and (stop := found(error)) is not None:
                raise stop from None
            raise

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it here, on the loop, and await the result if it is awaitable."""
        result = fn(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def gather(self, calls: Sequence[Call[T]]) -> list[T]:
        """Make the calls in tasks. If the body is cancelled, cancel them and wait for them."""
        if len(calls) < 2:
            return [await call() for call in calls]
        errors: list[BaseException | None] = []
        made = [asyncio.ensure_future(call()) for call in calls]
        try:
            await asyncio.wait(made)
        except asyncio.CancelledError as cancelled:
            errors = [cancelled]
            for call in made:
                call.cancel()
            await _finished(asyncio.gather(*made, return_exceptions=True))
        errors += [asyncio.CancelledError() if call.cancelled() else call.exception() for call in made]
        _raise_what_counts_most(errors)
        return [call.result() for call in made]

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Register a call, so that ``finish`` waits for it."""
        over = asyncio.get_running_loop().create_future()
        self._calls[over] = asyncio.current_task()
        try:
            yield
        finally:
            del self._calls[over]
            over.set_result(None)

    async def finish(self, *, cancel: bool = False) -> None:
        """Wait until no call runs; with ``cancel``, cancel them first."""
        for task in self._calls.values() if cancel else ():
            if task is not None:
                task.cancel()
        while self._calls:
            await asyncio.wait(self._calls)


#: One pool per process, for the stores of all its agents. The threads of the event loop belong to the
#: users: tools that block all of them must not prevent other calls from being recorded.
_pools: dict[int, ThreadPoolExecutor] = {}


def _threads() -> ThreadPoolExecutor:
    pid = os.getpid()
    if pid not in _pools:
        _pools.setdefault(pid, ThreadPoolExecutor(_MOST_THREADS, "celery_ckpt-io"))
    return _pools[pid]


async def _finished(work: asyncio.Future[Any]) -> None:
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            # Cancelled again; the caller raises one error for all.
            continue


def _raise_what_counts_most(errors: Sequence[BaseException | None]) -> None:
    raised = [error for error in errors if error is not None]
    if raised:
        stop = found(BaseExceptionGroup("parallel calls", raised))
        raise stop or next((one for one in raised if not isinstance(one, Exception)), raised[0])
