"""The bridge between a run and its body: one implementation for sync and async bodies.

What a run does is written once, as ``async def``. A bridge turns it into what the body sees:

              run(coroutine)             io(fn) of the store          call(fn) of the user
    sync      runs it to its end         calls it                     calls it; must not be async
    async     returns it to the body     in a thread, to its end      calls it, awaits an awaitable

A sync body may run an event loop of its own, as frameworks do behind their sync methods. The bridge of
a sync body therefore has a second one, ``aio``, for the code on such a loop. The coroutines of the run
know only the first: it passes on what a coroutine asks of it to the bridge that has started it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
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

    @property
    def aio(self) -> Bridge:
        """The bridge for code on an event loop."""
        ...

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


#: The bridge of the event loop that the coroutine of a sync body was started on, if it was on one.
_loop_bridge: ContextVar[AsyncBridge | None] = ContextVar("celery_ckpt_loop_bridge", default=None)


class SyncBridge:
    """For bodies that are plain functions."""

    is_async = False

    def __init__(self) -> None:
        #: For the code that the body runs on an event loop.
        self.aio = _LoopInSyncBody()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Drive a coroutine that never really suspends, and return its result."""
        # It may be called by a function that was itself called on a loop of the body.
        token = _loop_bridge.set(None)
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            _loop_bridge.reset(token)
        coroutine.close()
        raise RuntimeError("a coroutine of a sync body was suspended, and nothing can resume it")

    async def io(self, fn: Callable[..., T], *args: Any) -> T:
        """Call it."""
        if (loop := _loop_bridge.get()) is not None:
            return await loop.io(fn, *args)
        return fn(*args)

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it. Raises ``AsyncInSyncBody``, a ``TypeError``, for an async function."""
        if (loop := _loop_bridge.get()) is not None:
            return await loop.call(fn, *args, **kwargs)
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
            "`async def`, pass a plain function, or use run.aio on an event loop of your own."
        )

    async def gather(self, calls: Sequence[Call[T]]) -> list[T]:
        """Make the calls in threads, each in a copy of this context. One call needs no thread."""
        if (loop := _loop_bridge.get()) is not None:
            return await loop.gather(calls)
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
        loop = _loop_bridge.get()
        return nullcontext() if loop is None else loop.under_way()

    async def finish(self, *, cancel: bool = False) -> None:
        """Do nothing: no call outlives its caller, except on an event loop."""
        if (loop := _loop_bridge.get()) is not None:
            await loop.finish(cancel=cancel)


class AsyncBridge:
    """For bodies that are coroutines."""

    is_async = True

    def __init__(self) -> None:
        #: A future for the end of each running call, and the task that makes the call.
        self._calls: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}

    @property
    def aio(self) -> AsyncBridge:
        """This one."""
        return self

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
        for over in self._calls_here() if cancel else ():
            task = self._calls.get(over)
            if task is not None:
                task.cancel()
        while calls := self._calls_here():
            await asyncio.wait(calls)

    def _calls_here(self) -> list[asyncio.Future[None]]:
        """Return the calls on this loop: a sync body may run several, in threads."""
        loop = asyncio.get_running_loop()
        return [over for over in list(self._calls) if over.get_loop() is loop]


class _LoopInSyncBody(AsyncBridge):
    """For code on an event loop that a sync body runs."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that notes for the bridge of the body where it runs."""
        return self._on_loop(coroutine)

    async def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        token = _loop_bridge.set(self)
        try:
            return await coroutine
        finally:
            _loop_bridge.reset(token)


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
