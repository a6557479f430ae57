"""Idempotency keys that do not change between attempts, and code that does."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from celery_ckpt import AgentRun, Conversation, EveryN, Message
from celery_ckpt.run.control_flow import HandOff
from tests.support.run_host import Attempts, Host, chat_reply


def test_idempotency_keys_are_unique_and_the_same_in_every_attempt() -> None:
    keys: list[str] = []

    def body(run: AgentRun) -> None:
        keys.append(run.idempotency_key("pay"))
        for _ in run.iterations(limit=2):
            keys.extend(run.idempotency_key(name) for name in ("pay", "pay", "mail"))

    attempts = Attempts(body)
    attempts.go()
    first = list(keys)
    assert len(set(first)) == len(first) == 7
    keys.clear()
    attempts.go()
    assert keys == first
    keys.clear()
    Attempts(body, run_id="other").go()
    assert not set(keys) & set(first)


def test_a_run_resumed_in_a_later_iteration_has_the_same_keys_there() -> None:
    keys: list[str] = []

    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=3):
            keys.append(run.idempotency_key("pay"))

    Attempts(body).go()
    undisturbed = list(keys)
    keys.clear()
    attempts = Attempts(body, EveryN(1))
    for stop in (1, 2):
        run = attempts.attempt()
        attempts.host.stop_after_iteration = stop
        with pytest.raises(HandOff):
            attempts.go(run)
    attempts.go()
    assert keys == undisturbed


def test_a_key_created_inside_a_step_does_not_depend_on_replayed_steps() -> None:
    paid: list[str] = []

    def body(run: AgentRun) -> None:
        for _ in range(2):
            run.step("pay", lambda: paid.append(run.idempotency_key("pay")))

    attempts = Attempts(body)
    assert attempts.killed(2)
    attempts.go()
    assert len(paid) == 3
    assert paid[0] != paid[1] == paid[2]


class Strict(Host):
    def changed(self, run: AgentRun, name: str, *, is_replayed: bool = False) -> None:
        raise LookupError(name)


def changing(prompts: list[str]) -> Any:
    def body(run: AgentRun) -> str:
        for _ in run.iterations(limit=1):
            return run.llm(lambda prompt: chat_reply(prompt), prompts[0]).text
        raise AssertionError

    return body


def test_a_call_that_no_longer_matches_is_made_and_reported() -> None:
    prompts = ["old"]
    attempts = Attempts(changing(prompts))
    attempts.go()
    prompts[0] = "new"
    assert attempts.go()[0] == "new"
    assert attempts.host.changes == ["llm:<lambda>"]


def test_a_host_can_refuse_changed_code() -> None:
    prompts = ["old"]
    attempts = Attempts(changing(prompts))
    attempts.go()
    prompts[0] = "new"
    run = attempts.attempt()
    run._host.__class__ = Strict
    with pytest.raises(LookupError, match="llm:"):
        attempts.go(run)
    assert len(attempts.store.steps("a", "run")) == 1


def test_a_changed_concurrent_call_is_refused_when_its_iteration_ends() -> None:
    prompts = ["old"]

    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=3):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(run.step, "ask", lambda prompt: prompt, prompts[0]).result()

    attempts = Attempts(body)
    attempts.go()
    prompts[0] = "new"
    run = attempts.attempt()
    run._host.__class__ = Strict
    with pytest.raises(LookupError, match="ask"):
        attempts.go(run)
    assert run.iteration == 1
    assert len(attempts.store.steps("a", "run")) == 4, "the calls of that iteration were made"


def test_a_new_call_after_all_recorded_ones_is_not_a_change() -> None:
    prompts = ["a"]

    def body(run: AgentRun) -> None:
        for prompt in prompts:
            run.step("ask", lambda prompt: prompt, prompt)

    attempts = Attempts(body)
    attempts.go()
    prompts.append("b")
    attempts.go()
    assert attempts.host.changes == []


def test_a_body_that_skips_steps_covered_by_its_checkpoint_has_not_changed() -> None:
    def body(run: AgentRun) -> None:
        for number in range(run.state.get("done", 0), 3):
            run.step("work", str, number)
            run.state["done"] = number + 1
            run.checkpoint()

    attempts = Attempts(body)
    assert attempts.killed(5), "when the second step is recorded"
    attempts.go()
    assert attempts.host.changes == []


def test_a_call_with_another_conversation_does_not_match_the_call_with_the_runs_own() -> None:
    def echo(conversation: Conversation) -> dict[str, Any]:
        return chat_reply(conversation.messages[-1].text.upper())

    def body(run: AgentRun) -> str:
        if not run.resumed:
            run.conversation.append(Message.user("own"))
            run.llm(echo, run.conversation)
            run.checkpoint()
        return run.llm(echo, Conversation(messages=[Message.user("another")])).text

    attempts = Attempts(body)
    assert attempts.killed(4), "when its second reply is recorded"
    assert attempts.go()[0] == "ANOTHER"


def test_partially_recorded_concurrent_calls_are_not_a_change() -> None:
    async def body(run: AgentRun) -> Any:
        return await asyncio.gather(*(run.step("f", work, n) for n in range(5)))

    async def work(n: int) -> int:
        for _ in range(5 - n):
            await asyncio.sleep(0.001)
        return n

    attempts = Attempts(body)
    assert attempts.killed(3)
    assert attempts.store.steps("a", "run")
    assert attempts.go()[0] == [0, 1, 2, 3, 4]
    assert attempts.host.changes == []


def test_calls_inside_a_recorded_call_are_not_a_change() -> None:
    def body(run: AgentRun) -> list[int]:
        def outer(n: int) -> int:
            return run.step("inner", lambda x: x + 1, n)

        return [run.step("outer", outer, n) for n in range(3)]

    attempts = Attempts(body)
    attempts.go()
    for place in range(2 * attempts.host.writes):
        attempts = Attempts(body)
        attempts.killed(place)
        assert attempts.go()[0] == [1, 2, 3]
        assert attempts.host.changes == []


def test_concurrent_calls_that_start_late_are_not_a_change() -> None:
    async def tool(n: int) -> int:
        for _ in range(40 - 10 * n):
            await asyncio.sleep(0)
        return n

    async def body(run: AgentRun) -> Any:
        async def one(n: int) -> int:
            for _ in range(3 * n):  # a framework starts its own tasks between them
                await asyncio.sleep(0)
            return await run.step("tool", tool, n)

        return await asyncio.gather(*(one(n) for n in range(3)))

    attempts = Attempts(body)
    attempts.go()
    for place in range(2 * attempts.host.writes):
        attempts = Attempts(body)
        attempts.killed(place)
        assert attempts.go()[0] == [0, 1, 2]
        assert attempts.host.changes == []


def test_repeating_a_failed_call_is_not_a_change() -> None:
    fails = [True]

    def fetch(url: str) -> str:
        if url == "a" and fails:
            fails.pop()
            raise OSError
        return url

    def body(run: AgentRun) -> list[str]:
        found = []
        for url in "ab":
            with suppress(OSError):
                found.append(run.step("fetch", fetch, url))
        run.step("last", lambda: None)
        return found

    attempts = Attempts(body)
    assert attempts.killed(2), "when the last step is recorded"
    assert attempts.go()[0] == ["a", "b"]
    assert attempts.host.changes == []


def test_equal_calls_of_different_iterations_are_different_calls() -> None:
    def body(run: AgentRun) -> list[int]:
        return [run.step("n", lambda: run.iteration) for _ in run.iterations(limit=3)]

    attempts = Attempts(body)
    assert attempts.go()[0] == attempts.go()[0] == [1, 2, 3]
