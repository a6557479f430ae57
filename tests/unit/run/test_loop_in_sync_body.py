"""``run.aio``: the same run, for code on an event loop that a plain body runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from celery_ckpt import AgentRun, EveryN, Message
from celery_ckpt.run.control_flow import HandOff
from tests.support.run_host import Attempts, chat_reply

CALL = ("c1", "double", '{"n": 4}')


async def model(text: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return chat_reply(text, CALL)


async def double(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


def framework(run: AgentRun) -> list[Any]:
    """Do what a framework does behind a sync method: run everything on a loop of its own."""

    async def main() -> list[Any]:
        own = run.aio
        reply = await own.llm(model, "hello")
        results = await own.tools(reply, {"double": double})
        parallel = await asyncio.gather(*(own.step("double", double, n) for n in range(3)))
        plain = await own.step("plain", lambda: "sync")  # type: ignore[misc]
        return [reply.text, results, parallel, plain]

    return asyncio.run(main())


def test_everything_is_awaitable_on_a_loop_inside_a_plain_body() -> None:
    attempts = Attempts(framework)
    result, run = attempts.go()
    assert result == ["hello", [8], [0, 2, 4], "sync"]
    assert [message.role for message in run.conversation] == ["assistant", "tool"]


def test_calls_on_a_loop_inside_a_plain_body_are_replayed_after_a_kill_at_any_write() -> None:
    expected, run = Attempts(framework, EveryN(1)).go()
    attempts = Attempts(framework, EveryN(1))
    attempts.go()
    for place in range(2 * attempts.host.writes):
        again = Attempts(framework, EveryN(1))
        assert again.killed(place)
        result, resumed = again.go()
        assert result == expected
        assert resumed.conversation == run.conversation
        assert again.host.changes == []


def test_it_is_the_same_run() -> None:
    def body(run: AgentRun) -> None:
        own = run.aio
        own.state = {"a": 1}
        assert run.state == {"a": 1}
        run.metadata["m"] = "1"
        own.conversation.append(Message.user("u"))
        own.local["x"] = object()
        assert own.metadata == {"m": "1"}
        assert len(run.conversation) == 1
        assert run.local is own.local
        assert isinstance(own, AgentRun)
        assert own.aio is own

    Attempts(body).go()


def test_in_an_async_body_it_is_the_run_itself() -> None:
    async def body(run: AgentRun) -> bool:
        return run.aio is run

    assert Attempts(body).go()[0]


def test_the_loop_of_the_run_works_on_a_loop_of_the_body() -> None:
    def body(run: AgentRun) -> list[int]:
        async def main() -> list[int]:
            return [
                await run.aio.step("double", double, iteration)
                async for iteration in run.aio.iterations(limit=3)
            ]

        return asyncio.run(main())

    attempts = Attempts(body, EveryN(1))
    assert attempts.killed(5)
    attempts.go()
    assert attempts.latest.iteration == 3


def test_a_hand_off_on_a_loop_waits_for_the_calls_beside_it() -> None:
    ended: list[int] = []

    async def slow(n: int) -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        ended.append(n)
        return n

    def body(run: AgentRun) -> Any:
        async def main() -> Any:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.aio.step("slow", slow, 1))  # type: ignore[arg-type]
                await asyncio.sleep(0)
                group.create_task(run.aio.step("slow", slow, 2))  # type: ignore[arg-type]

        return asyncio.run(main())

    attempts = Attempts(body)
    run = attempts.attempt()
    attempts.host.stop_at_check = 2
    with pytest.raises(BaseExceptionGroup) as stopped:
        attempts.go(run)
    assert isinstance(stopped.value.exceptions[0], HandOff)
    assert ended == [1]
    assert [step.value for step in attempts.store.steps("a", "run")] == [1]


def test_sync_and_async_calls_nest_in_any_order() -> None:
    """A sync tool that a framework calls on its loop, or in a thread, uses the run as it is."""

    def body(run: AgentRun) -> Any:
        def tool(n: int) -> int:
            return run.step("inner", lambda: n + 1)

        async def in_thread(n: int) -> int:
            return await asyncio.to_thread(tool, n)

        async def deeper(n: int) -> int:
            return await run.aio.step("inner", double, n)

        async def main() -> list[int]:
            on_loop = await run.aio.step("on the loop", tool, 1)  # type: ignore[misc]
            return [
                on_loop,
                await run.aio.step("in a thread", in_thread, 2),
                await run.aio.step("deeper", deeper, 3),
            ]

        return [*asyncio.run(main()), run.step("outside", lambda: 0)]

    attempts = Attempts(body)
    assert attempts.go()[0] == [2, 3, 6, 0]
    assert attempts.go()[0] == [2, 3, 6, 0]
    assert attempts.host.writes == 0


def test_several_loops_in_threads_share_a_run() -> None:
    meet = threading.Barrier(2)

    def body(run: AgentRun) -> list[int]:
        async def met(n: int) -> int:
            meet.wait(10)
            return n

        def one(n: int) -> int:
            return asyncio.run(_step(run, met, n))

        with ThreadPoolExecutor(2) as threads:
            futures = [threads.submit(copy_context().run, one, n) for n in range(2)]
            return [future.result() for future in futures]

    assert Attempts(body).go()[0] == [0, 1]


async def _step(run: AgentRun, fn: Any, n: int) -> int:
    return await run.aio.step("met", fn, n)


def test_an_async_function_without_aio_is_refused_with_a_hint() -> None:
    def body(run: AgentRun) -> None:
        async def main() -> None:
            run.step("double", double, 1)

        asyncio.run(main())

    with pytest.raises(TypeError, match=r"run\.aio"):
        Attempts(body).go()
