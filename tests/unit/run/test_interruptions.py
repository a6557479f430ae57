"""Bodies that are killed before and after every write, and handed off at every check.

Each ends as if it had not been interrupted: the same result, conversation, state, metadata and usage.
No recorded call is repeated, and no call is mistaken for a changed one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from celery_ckpt import (
    AfterToolCall,
    AgentRun,
    CheckpointEvent,
    CheckpointStrategy,
    Conversation,
    EveryN,
    Message,
    Never,
)
from celery_ckpt.run.control_flow import HandOff, found
from tests.support.run_host import Attempts, chat_reply, was_killed

Body = Callable[[AgentRun], Any]
STRATEGIES = [Never(), EveryN(1), EveryN(5), AfterToolCall()]
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)


class Tried(Attempts):
    """Attempts of a run that count its records, including records that were dropped since."""

    def __init__(self, body: Body, strategy: CheckpointStrategy) -> None:
        super().__init__(body, strategy)
        self.recorded: Counter[str] = Counter()
        self.changes: list[str] = []
        record = self.store.record_step

        def counting(step: Any, lease: Any = None, **paid: Any) -> None:
            record(step, lease, **paid)
            self.recorded[step.name] += 1

        self.store.record_step = counting  # type: ignore[method-assign]

    def interrupted(self, kill_at: int | None, stop_at: int | None) -> bool:
        """Make an attempt that is killed at that write or stopped at that check. Return False
        if it ended first.
        """
        run = self.attempt(kill_at)
        self.host.stop_at_check = stop_at
        try:
            self.go(run)
        except BaseException as error:
            if not (was_killed(error) or isinstance(found(error), HandOff)):
                raise
            return True
        finally:
            self.changes += self.host.changes
        return False

    def end(self) -> dict[str, Any]:
        result, run = self.go()
        return {
            "result": result,
            "conversation": run.conversation.to_dict(),
            "state": run.state,
            "metadata": run.metadata,
            "iteration": run.iteration,
            "usage": run.usage,
            "recorded": self.recorded,
            "changes": self.changes + self.host.changes,
        }


def interruptions(make: Callable[[], Body], strategy: CheckpointStrategy) -> Iterator[tuple[Any, Any]]:
    """Return how the run may be interrupted: killed at a write, or stopped at a check."""
    tried = Tried(make(), strategy)
    tried.go()
    yield from ((place, None) for place in range(2 * tried.host.writes))
    yield from ((None, check) for check in range(1, tried.host.checks + 1))


def ends_the_same(make: Callable[[], Body], strategy: CheckpointStrategy) -> None:
    """Assert that the run ends the same wherever it is interrupted, once or twice."""
    expected = Tried(make(), strategy).end()
    assert expected["changes"] == []
    for first in interruptions(make, strategy):
        for second in (None, (None, 1), (2, None)):
            tried = Tried(make(), strategy)
            assert tried.interrupted(*first)
            if second is not None and not tried.interrupted(*second):
                continue
            assert tried.end() == expected, (first, second)


def think(conversation: Conversation, iteration: int) -> dict[str, Any]:
    calls = [(f"call_{n}", "look", f'{{"n": {n}}}') for n in range(2)]
    return {
        "choices": [{"message": chat_reply(f"thought {iteration} on {len(conversation)}", *calls)}],
        "model": "m",
        "usage": {"prompt_tokens": 10, "completion_tokens": iteration},
    }


def look(n: int) -> str:
    return f"seen {n}"


# -- leaving the loop --------------------------------------------------------------------------------


def test_a_body_that_cleans_up_during_a_hand_off_has_not_left_its_loop() -> None:
    def body(run: AgentRun) -> list[int]:
        try:
            for iteration in run.iterations(limit=3):
                run.state["iterations"] = [*run.state.get("iterations", []), iteration]
                run.emit(CheckpointEvent.LLM_RESPONSE)
        finally:
            run.step("tidy up", str)
        return sorted(set(run.state["iterations"]))

    for check in range(1, 4):
        attempts = Attempts(body)
        run = attempts.attempt()
        attempts.host.stop_at_check = check
        with pytest.raises(HandOff):
            attempts.go(run)
        assert not attempts.latest.after_loop
        assert attempts.go()[0] == [1, 2, 3]


def test_a_body_that_saves_while_an_error_propagates_has_not_left_its_loop() -> None:
    def body(run: AgentRun) -> list[int]:
        try:
            for iteration in run.iterations(limit=3):
                run.emit(CheckpointEvent.LLM_RESPONSE)
                run.state["iterations"] = [*run.state.get("iterations", []), iteration]
                if run.attempt == 1 and iteration == 2:
                    raise ConnectionError
        finally:
            run.checkpoint()
        return sorted(set(run.state["iterations"]))

    attempts = Attempts(body)
    with pytest.raises(ConnectionError):
        attempts.go()
    assert attempts.go()[0] == [1, 2, 3]


def test_an_iteration_event_emitted_after_the_loop_does_not_reenter_it() -> None:
    iterations: list[int] = []

    def body(run: AgentRun) -> None:
        for iteration in run.iterations():
            iterations.append(iteration)
            run.step("work", str, iteration)
            if iteration >= 2:
                break
        run.emit(CheckpointEvent.ITERATION)
        run.step("more", str)

    for stop_at in (3, 4):
        iterations.clear()
        attempts = Attempts(body, EveryN(1))
        run = attempts.attempt()
        attempts.host.stop_at_check = stop_at
        with pytest.raises(HandOff):
            attempts.go(run)
        attempts.go()
        assert max(iterations) == 2


@each_strategy
def test_a_checkpoint_after_a_loop_without_iterations_contains_the_conversation(
    strategy: CheckpointStrategy,
) -> None:
    def body(run: AgentRun) -> int:
        if not run.resumed:
            run.conversation.append(Message.user("go"))
        for iteration in run.iterations(limit=0):
            run.step("work", str, iteration)
        run.state["n"] = run.state.get("n", 0) + 1
        run.llm(think, run.conversation, 1)
        run.checkpoint()
        run.llm(think, run.conversation, 2)
        return len(run.conversation)

    ends_the_same(lambda: body, strategy)


# -- tool calls that are answered later ----------------------------------------------------------------


@each_strategy
def test_tool_calls_can_be_answered_in_the_next_iteration(strategy: CheckpointStrategy) -> None:
    def body(run: AgentRun) -> str:
        for iteration in run.iterations(limit=3):
            run.state["n"] = run.state.get("n", 0) + 1
            for call in run.conversation.pending_tool_calls():
                run.tool(call, look)
            reply = run.llm(think, run.conversation, iteration)
        return str(reply.text)

    ends_the_same(lambda: body, strategy)


@each_strategy
def test_tool_calls_can_be_answered_after_a_compaction(strategy: CheckpointStrategy) -> None:
    def body(run: AgentRun) -> str:
        for iteration in run.iterations(limit=3):
            if iteration > 1:
                run.conversation.replace([Message.user("summary"), *run.conversation.messages[-1:]])
            for call in run.conversation.pending_tool_calls():
                run.tool(call, look)
            reply = run.llm(think, run.conversation, iteration)
        run.conversation.append(Message.user("at last"))
        for call in reply.tool_calls:
            run.tool(call, look)
        return str(reply.text)

    ends_the_same(lambda: body, strategy)


@each_strategy
def test_tool_calls_of_the_loop_can_be_answered_after_it(strategy: CheckpointStrategy) -> None:
    def body(run: AgentRun) -> str:
        for iteration in run.iterations(limit=9):
            reply = run.llm(think, run.conversation, iteration)
            if iteration == 2:
                break
            run.tools(reply, [look])
        run.state["n"] = run.state.get("n", 0) + 1
        run.tools(reply, [look])
        return str(reply.text)

    ends_the_same(lambda: body, strategy)


# -- calls that fail -----------------------------------------------------------------------------------


def flaky() -> Body:
    """Fail at the first try of each call before the loop, and try again."""
    failed: set[int] = set()

    def fetch(conversation: Conversation, number: int) -> str:
        if number not in failed:
            failed.add(number)
            raise ConnectionError
        return f"page {number}"

    def body(run: AgentRun) -> list[str]:
        pages: list[str] = []
        while len(pages) < 2:
            with suppress(ConnectionError):
                pages.append(run.step("fetch", fetch, run.conversation, len(pages)))
        for iteration in run.iterations(limit=2):
            run.llm(think, run.conversation, iteration)
        return pages

    return body


@each_strategy
def test_a_retried_call_before_the_loop_finds_its_record(
    strategy: CheckpointStrategy,
) -> None:
    ends_the_same(flaky, strategy)


def unreliable() -> Body:
    """Make a step that fails once after a step inside it has succeeded."""
    failed: set[int] = set()

    def body(run: AgentRun) -> list[str]:
        def paid(iteration: int) -> str:
            run.report(input_tokens=7)
            return f"paid {iteration}"

        def order(iteration: int) -> str:
            receipt = run.step("pay", paid, iteration)
            if iteration not in failed:
                failed.add(iteration)
                raise ConnectionError
            return f"{receipt} and ordered"

        done: list[str] = []
        for iteration in run.iterations(limit=2):
            done = []
            while not done:
                with suppress(ConnectionError):
                    done.append(run.step("order", order, iteration))
        return done

    return body


@each_strategy
def test_steps_recorded_inside_a_failed_step_are_not_repeated(
    strategy: CheckpointStrategy,
) -> None:
    expected = Tried(unreliable(), strategy).end()
    assert expected["recorded"] == {"pay": 2, "order": 2}
    assert expected["usage"].tokens == 14
    ends_the_same(unreliable, strategy)


# -- checkpoints before the loop -----------------------------------------------------------------------


def saves_first(run: AgentRun) -> Any:
    """Call and save before the loop, in every attempt."""
    run.llm(think, Conversation(), 5)
    run.checkpoint(note="begun")
    for iteration in run.iterations(limit=3):
        run.state["n"] = run.state.get("n", 0) + 1
        run.llm(think, run.conversation, iteration)
        run.step("look", look, iteration)
        used = run.usage.tokens
    return used


def saves_first_and_later(run: AgentRun) -> Any:
    """Work manually in the loop as well."""
    run.llm(think, Conversation(), 5)
    run.checkpoint()
    for iteration in run.iterations(limit=3):
        run.llm(think, run.conversation, iteration)
        run.emit(CheckpointEvent.LLM_RESPONSE)
        run.step("look", look, iteration)
    return run.usage.tokens


def emits_first(run: AgentRun) -> Any:
    """Emit an event before the loop, in every attempt."""
    run.emit(CheckpointEvent.LLM_RESPONSE)
    for iteration in run.iterations(limit=3):
        run.state["n"] = run.state.get("n", 0) + 1
        run.llm(think, run.conversation, iteration)
        run.step("look", look, iteration)
        used = run.usage.tokens
    return used


@each_strategy
@pytest.mark.parametrize("body", [saves_first, saves_first_and_later, emits_first])
def test_a_checkpoint_before_the_loop_keeps_the_position_of_a_resumed_run(
    body: Body, strategy: CheckpointStrategy
) -> None:
    ends_the_same(lambda: body, strategy)


# -- concurrent calls after the loop -------------------------------------------------------------------


def in_threads(run: AgentRun) -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda n: str(run.step("look", look, n)), range(2)))


def beside_the_body(run: AgentRun) -> list[str]:
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(run.step, "look", look, 1)
        beside.exception()
        return [beside.result(), run.step("look", look, 2)]


def with_a_key(run: AgentRun) -> list[str]:
    return [run.step("pay", str, run.idempotency_key("pay"))]


@each_strategy
@pytest.mark.parametrize("after", [in_threads, beside_the_body, with_a_key])
def test_the_first_call_after_a_manually_saved_loop_is_recognised(
    after: Callable[[AgentRun], list[str]], strategy: CheckpointStrategy
) -> None:
    def body(run: AgentRun) -> list[str]:
        for iteration in run.iterations(limit=9):
            run.emit(CheckpointEvent.LLM_RESPONSE)
            if iteration == 2:
                break
        found = after(run)
        run.checkpoint()
        run.step("more", str)
        return found

    ends_the_same(lambda: body, strategy)


@each_strategy
def test_the_first_tasks_after_a_manually_saved_loop_are_recognised(
    strategy: CheckpointStrategy,
) -> None:
    async def body(run: AgentRun) -> list[str]:
        async def looking(n: int) -> str:
            return str(await run.step("look", look, n))

        async for iteration in run.iterations(limit=9):
            await run.emit(CheckpointEvent.LLM_RESPONSE)
            if iteration == 2:
                break
        found = await asyncio.gather(looking(1), looking(2))
        await run.checkpoint()
        await run.step("more", str)
        return list(found)

    ends_the_same(lambda: body, strategy)


# -- what is emitted -----------------------------------------------------------------------------------


def test_a_hand_off_at_the_end_of_the_last_iteration_does_not_emit_that_end_again() -> None:
    def body(run: AgentRun) -> None:
        for iteration in run.iterations(limit=2):
            run.step("look", look, iteration)
        run.step("more", str)

    for further in ([], [1]):
        attempts, events = Attempts(body, EveryN(1)), []
        for stop_at in (4, *further):
            run = attempts.attempt()
            attempts.host.stop_at_check = stop_at
            with pytest.raises(HandOff):
                attempts.go(run)
            events += attempts.host.events
        attempts.go()
        ends = [n for n, event in events + attempts.host.events if event is CheckpointEvent.ITERATION]
        assert ends == [1, 2]
