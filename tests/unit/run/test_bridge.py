"""Async functions are found however they are wrapped, and one coroutine serves sync and async
bodies.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from celery_ckpt.errors import RunMisused
from celery_ckpt.run.bridge import AsyncBridge, Bridge, SyncBridge
from celery_ckpt.run.control_flow import Fenced, HandOff, found
from celery_ckpt.run.iterations import Iterations


def test_control_flow_is_found_at_any_depth_of_exception_groups() -> None:
    hand_off = HandOff()
    inner = BaseExceptionGroup("inner", [KeyError(), hand_off])
    assert found(BaseExceptionGroup("outer", [ValueError(), inner])) is hand_off
    assert found(hand_off) is hand_off


def test_fenced_takes_precedence_over_hand_off() -> None:
    fenced = Fenced()
    assert found(BaseExceptionGroup("", [HandOff(), BaseExceptionGroup("", [fenced])])) is fenced


def test_other_errors_are_not_control_flow() -> None:
    assert found(ExceptionGroup("", [ValueError()])) is None
    assert found(KeyboardInterrupt()) is None


def test_an_except_clause_in_the_body_does_not_catch_control_flow() -> None:
    assert not issubclass(HandOff, Exception)
    assert not issubclass(Fenced, Exception)


async def answer(bridge: Any) -> int:
    first = await bridge.io(lambda a: a + 1, 40)
    return int(await bridge.call(lambda a, b: a + b, first, b=1))


def test_the_same_coroutine_serves_both_kinds_of_body() -> None:
    assert SyncBridge().run(answer(SyncBridge())) == 42
    assert asyncio.run(AsyncBridge().run(answer(AsyncBridge()))) == 42


def test_an_async_function_in_a_sync_body_is_refused() -> None:
    async def fetch() -> None: ...

    bridge = SyncBridge()
    with pytest.raises(TypeError, match=r"fetch is async, but the body is not"):
        bridge.run(bridge.call(fetch))


def test_a_coroutine_that_really_suspends_is_an_error_in_a_sync_body() -> None:
    with pytest.raises(RuntimeError, match="suspended"):
        SyncBridge().run(asyncio.sleep(0))


def test_an_async_body_awaits_what_an_async_function_returns() -> None:
    async def fetch(a: int) -> int:
        await asyncio.sleep(0)
        return a

    assert asyncio.run(AsyncBridge().call(fetch, 5)) == 5


def test_io_of_an_async_body_runs_in_a_thread_in_the_same_context() -> None:
    var: ContextVar[int] = ContextVar("var")

    async def body() -> tuple[int, bool]:
        var.set(7)
        seen = await AsyncBridge().io(lambda: (var.get(), threading.current_thread()))
        return seen[0], seen[1] is threading.current_thread()

    assert asyncio.run(body()) == (7, False)


def test_started_io_completes_although_the_body_is_cancelled_twice() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def write() -> None:
        begun.set()
        go_on.wait(60)
        done.append(True)

    async def body() -> None:
        task = asyncio.ensure_future(AsyncBridge().io(write))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [True]

    asyncio.run(body())


@pytest.mark.parametrize(("raised", "seen"), [(Fenced, Fenced), (OSError, asyncio.CancelledError)])
def test_a_cancelled_body_still_receives_control_flow(raised: Any, seen: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        go_on.wait(60)
        raise raised

    async def body() -> None:
        task = asyncio.ensure_future(AsyncBridge().io(write))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(seen):
            await task

    asyncio.run(body())


def test_a_loop_ends_when_advance_returns_none() -> None:
    def counter() -> Any:
        numbers = iter([1, 2, None])

        async def advance() -> int | None:
            return next(numbers)

        return advance

    def loop(bridge: Bridge) -> Iterations:
        return Iterations(bridge, counter(), lambda: dropped.append(bridge))

    async def collect() -> list[int]:
        return [i async for i in loop(AsyncBridge())]

    dropped: list[Bridge] = []
    assert list(loop(SyncBridge())) == [1, 2] == asyncio.run(collect())
    assert dropped == []


def forever(bridge: Bridge, dropped: Callable[[], None]) -> Iterations:
    async def advance() -> int:
        return 1

    return Iterations(bridge, advance, dropped)


def test_a_loop_reports_a_break_immediately() -> None:
    left: list[str] = []
    for _ in forever(SyncBridge(), lambda: left.append("break")):
        break
    assert left == ["break"]

    async def body() -> None:
        held = forever(AsyncBridge(), lambda: left.append("async break"))
        async for _ in held:
            break
        assert left == ["break", "async break"]

    asyncio.run(body())


def test_a_loop_of_the_other_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="`async for`"):
        next(iter(forever(AsyncBridge(), lambda: None)))
    with pytest.raises(TypeError, match="`for`"):
        aiter(forever(SyncBridge(), lambda: None))


def test_iterations_can_be_looped_over_only_once() -> None:
    loop = forever(SyncBridge(), lambda: None)
    assert next(iter(loop)) == 1
    with pytest.raises(RunMisused, match="once"):
        iter(loop)


def test_tools_that_block_the_threads_of_the_loop_do_not_block_the_store() -> None:
    let_go = threading.Event()

    async def body() -> str:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        blocking = asyncio.create_task(asyncio.to_thread(let_go.wait, 30))
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(AsyncBridge().io(str, "written"), 10)
        finally:
            let_go.set()
            await blocking

    assert asyncio.run(body()) == "written"
