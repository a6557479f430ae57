"""What a run has used: the same numbers in every attempt, and everything that was paid for, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from celery_ckpt import AgentRun, CheckpointEvent, EveryN, Message, Never, Usage
from celery_ckpt.errors import NotJson, RunMisused
from celery_ckpt.run.bridge import SyncBridge
from celery_ckpt.testing import make_run
from tests.support.run_host import Attempts, Host, OutOfTime, chat_reply

Body = Callable[[AgentRun], Any]


def completion(number: int, model: str = "big") -> dict[str, Any]:
    """Return a reply. Each has a different number of tokens, so that none can be mistaken for
    another.
    """
    return {
        "object": "chat.completion",
        "model": model,
        "choices": [{"message": chat_reply(f"answer {number}", (f"c{number}", "f", "{}"))}],
        "usage": {"prompt_tokens": 10**number, "completion_tokens": 1},
    }


def working(run: AgentRun) -> list[int]:
    """Use models before, in and after the loop, directly, in tools and in nested steps."""
    run.llm(completion, 0)
    before = run.usage.input_tokens

    def search() -> str:
        run.report(model="small", input_tokens=7, cost=0.5)
        return "found"

    def inner() -> str:
        run.report(model="inner", output_tokens=3)
        return "in"

    def outer() -> str:
        run.report(model="outer", output_tokens=5)
        return run.step("inner", inner)

    for iteration in run.iterations(limit=3):
        reply = run.llm(completion, iteration)
        for call in reply.tool_calls:
            run.tool(call, search)
        run.step("outer", outer)
        run.state["seen"] = [*run.state.get("seen", []), run.usage.tokens]
    run.llm(completion, 5, "other")
    return [before, *run.state["seen"], run.usage.tokens]


def saving(run: AgentRun) -> list[int]:
    """Save manually, in a loop without ``run.iterations``, and skip what is done already."""
    seen: list[int] = run.state.setdefault("seen", [])
    for number in range(len(seen), 4):
        run.step("ask", lambda number: run.report(input_tokens=10**number), number)
        run.step("check", lambda number: run.report(output_tokens=10**number), number)
        run.conversation.append(Message.user(str(number)))
        seen.append(run.usage.input_tokens)
        run.checkpoint()
    return [*seen, run.usage.input_tokens]


def saving_before_its_loop(run: AgentRun) -> list[int]:
    """Save manually before the loop, in every attempt."""
    run.llm(completion, 0)
    run.checkpoint()
    for iteration in run.iterations(limit=3):
        run.llm(completion, iteration)
        run.state["seen"] = [*run.state.get("seen", []), run.usage.tokens]
    return [*run.state["seen"], run.usage.tokens]


def tried(body: Body, strategy: Any) -> Attempts:
    attempts = Attempts(body, strategy)
    attempts.store.add_run(make_run("a", "run"))
    return attempts


def paid(attempts: Attempts) -> Usage:
    found = attempts.store.run("a", "run")
    assert found is not None
    return found.usage


@pytest.mark.parametrize("strategy", [Never(), EveryN(1), EveryN(2)], ids=str)
@pytest.mark.parametrize("body", [working, saving, saving_before_its_loop])
def test_a_body_sees_the_same_numbers_wherever_it_is_killed(body: Body, strategy: Any) -> None:
    attempts = tried(body, strategy)
    expected, run = attempts.go()
    assert paid(attempts) == run.usage, (
        "without interruptions, everything that was used was paid for once"
    )
    whole = run.usage
    for place in range(2 * attempts.host.writes):
        attempts = tried(body, strategy)
        assert attempts.killed(place)
        attempts.killed(3)
        before = paid(attempts)
        result, run = attempts.go()
        assert result == expected, place
        assert run.usage == whole, place
        assert paid(attempts) == whole, (place, "a call is paid for when its step is recorded")
        assert before.tokens <= whole.tokens


def test_usage_is_kept_by_model() -> None:
    _, run = tried(working, EveryN(1)).go()
    usage = run.usage
    assert usage.by_model["big"].input_tokens == 1 + 10 + 100 + 1000
    assert usage.by_model["small"] == Usage(input_tokens=21, cost=1.5)
    assert (usage.by_model["inner"].output_tokens, usage.by_model["outer"].output_tokens) == (9, 15)
    assert usage.by_model["other"].input_tokens == 100_000
    assert usage.cost == 1.5
    assert usage.input_tokens == sum(own.input_tokens for own in usage.by_model.values())


def test_a_new_run_of_the_agent_counts_from_zero() -> None:
    attempts = Attempts(working, EveryN(1))
    attempts.go()
    other = Attempts(lambda run: run.usage, EveryN(1), store=attempts.store, run_id="other")
    assert other.go()[0] == Usage()


def test_usage_reported_without_a_model_is_attributed_to_the_model_that_replied() -> None:
    def ask() -> dict[str, Any]:
        run.report(cost=0.25)
        return completion(1)

    run = Attempts(lambda run: None).attempt()
    run.llm(ask)
    assert run.usage.by_model == {"big": Usage(10, 1, cost=0.25)}


def test_a_report_outside_a_call_is_refused() -> None:
    run = Attempts(lambda run: None).attempt()
    with pytest.raises(RunMisused, match=r"run\.llm, run\.tool or run\.step"):
        run.report(input_tokens=1)


@pytest.mark.parametrize(
    "wrong", [{"input_tokens": -1}, {"output_tokens": 1.5}, {"cost": "much"}, {"cost": float("nan")}]
)
def test_an_invalid_usage_report_is_refused(wrong: dict[str, Any]) -> None:
    run = Attempts(lambda run: None).attempt()
    with pytest.raises(NotJson, match=next(iter(wrong))):
        run.step("ask", lambda: run.report(**wrong))


def test_concurrent_calls_report_their_usage_separately() -> None:
    def ask(number: int) -> int:
        run.report(input_tokens=10**number)
        return number

    def body(run: AgentRun) -> None:
        with ThreadPoolExecutor(4) as pool:
            asked = [
                pool.submit(copy_context().run, run.step, "ask", ask, number) for number in range(4)
            ]
            assert [each.result() for each in asked] == [0, 1, 2, 3]

    attempts = Attempts(body)
    run = attempts.attempt()
    attempts.go(run)
    assert run.usage.input_tokens == 1111
    assert [step.usage.input_tokens for step in attempts.store.steps("a", "run")] == sorted(
        (1, 10, 100, 1000), key=[s.usage.input_tokens for s in attempts.store.steps("a", "run")].index
    )


def test_async_calls_report_their_usage_separately() -> None:
    async def ask(number: int) -> int:
        await asyncio.sleep(0)
        current.report(input_tokens=10**number)
        return number

    async def body(run: AgentRun) -> Usage:
        await asyncio.gather(*(run.step("ask", ask, number) for number in range(4)))
        return run.usage

    attempts = Attempts(body)
    current = attempts.attempt()
    assert attempts.go(current)[0].input_tokens == 1111


def with_cost(cost: Callable[[str, Usage], Any]) -> AgentRun:
    attempts = Attempts(lambda run: None)
    host = Host(attempts.store, Never())
    return AgentRun("a", "run", 1, host, SyncBridge(), None, [], cost=cost)


def test_a_cost_is_computed_for_calls_that_report_none() -> None:
    def cost(model: str, usage: Usage) -> float | None:
        return usage.input_tokens * 2.0 if model == "big" else None

    run = with_cost(cost)
    run.llm(completion, 1)
    assert run.usage.by_model["big"].cost == 20.0
    run.step("known", lambda: run.report(model="big", input_tokens=100, cost=1.0))
    assert run.usage.cost == 21.0
    run.step("unknown", lambda: run.report(model="other", input_tokens=100))
    assert (run.usage.cost, run.usage.by_model["other"].cost) == (21.0, None)


@pytest.mark.parametrize("wrong", [lambda *_: 1 / 0, lambda *_: "much"], ids=["raises", "text"])
def test_a_failed_cost_computation_loses_no_reply(wrong: Any) -> None:
    run = with_cost(wrong)
    assert run.llm(completion, 1).text == "answer 1"
    assert (run.usage.input_tokens, run.usage.cost) == (10, None)
    assert len(run._host.costs_failed) == 1  # type: ignore[attr-defined]


def test_a_time_limit_during_cost_computation_is_not_treated_as_its_error() -> None:
    def late(model: str, usage: Usage) -> float:
        raise OutOfTime

    run = with_cost(late)
    with pytest.raises(OutOfTime):
        run.llm(completion, 1)
    assert run._host.costs_failed == []  # type: ignore[attr-defined]


def test_checkpoints_contain_the_usage() -> None:
    def body(run: AgentRun) -> None:
        for iteration in run.iterations(limit=2):
            run.llm(completion, iteration)
            run.emit(CheckpointEvent.LLM_RESPONSE)

    attempts = Attempts(body, EveryN(1))
    attempts.go()
    counts = [one.usage.input_tokens for one in attempts.store.list("a")][::-1]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (10, 110)
