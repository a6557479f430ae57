"""Steps, model calls and tools of a run: called once, replayed afterwards."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from celery_ckpt import AfterToolCall, AgentRun, CheckpointEvent, EveryN, Message, ToolCall
from celery_ckpt.errors import RunMisused
from celery_ckpt.run.control_flow import Fenced, HandOff
from tests.support.run_host import Attempts, chat_reply, roles

CALLS = [(f"c{n}", "f", f'{{"n":{n}}}') for n in range(4)]


class SdkMessage(BaseModel):
    """Behaves like the SDKs' objects: it has more fields than the server sent, accepts unknown
    fields, and renames some.
    """

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | None = None
    refusal: str | None = None
    schema_: str | None = Field(default=None, alias="schema")


SAID = {"role": "assistant", "content": None, "schema": "s", "new": {"x": 1}}


class Answer:
    def to_dict(self) -> dict[str, Any]:
        return SAID


@pytest.mark.parametrize("said", [SAID, Message.of(SAID), SdkMessage.model_validate(SAID), Answer()])
def test_a_reply_is_kept_exactly_as_received(said: Any) -> None:
    attempts = Attempts(lambda run: run.llm(lambda: said))
    for _ in range(2):
        result, run = attempts.go()
        assert type(result) is Message
        assert result.to_dict() == SAID
        assert run.conversation.messages == [result]


@pytest.mark.parametrize("items", [[], [SAID], [SAID, {"type": "reasoning", "id": "r"}]])
def test_all_items_of_a_list_are_appended(items: list[Any]) -> None:
    attempts = Attempts(lambda run: run.llm(lambda: items))
    for _ in range(2):
        result, run = attempts.go()
        assert result == [Message.of(item) for item in items] == run.conversation.messages


def test_a_recorded_reply_knows_where_it_was_appended() -> None:
    def body(run: AgentRun) -> None:
        run.conversation.append(Message.user("why?"))
        run.llm(lambda: SAID)

    attempts = Attempts(body)
    attempts.go()
    [step] = attempts.store.steps("a", "run")
    assert step.value == {"at": 1, "messages": [SAID]}
    assert (step.iteration, step.name) == (0, "llm:<lambda>")


def test_a_replay_emits_nothing_and_records_nothing() -> None:
    def body(run: AgentRun) -> Any:
        reply = run.llm(lambda: chat_reply(None, *CALLS))
        return [run.tool(call, lambda n: n) for call in reply.tool_calls]

    attempts = Attempts(body)
    first, run = attempts.go()
    assert len(attempts.host.events) == 5
    again, replayed = attempts.go()
    assert (attempts.host.events, attempts.host.writes, attempts.host.checks) == ([], 0, 0)
    assert first == again == [0, 1, 2, 3]
    assert replayed.conversation == run.conversation


def test_a_call_is_checked_made_recorded_appended_and_emitted_in_this_order() -> None:
    seen: list[str] = []

    def model() -> Any:
        seen.append("call")
        return chat_reply("x")

    attempts = Attempts(lambda run: run.llm(model))
    run = attempts.attempt()
    host = attempts.host
    host.check = lambda run: seen.append("check")  # type: ignore[method-assign]
    host.record = lambda step, paid, call: seen.append(f"record {len(run.conversation)}")  # type: ignore[method-assign]
    host.emit_recorded = (  # type: ignore[method-assign]
        lambda run, event, saved: seen.append(f"{event} {len(run.conversation)}")
    )
    attempts.go(run)
    assert seen == ["check", "call", "record 0", "llm_response 1"]


def test_a_step_in_flight_is_called_again_and_a_recorded_one_is_not() -> None:
    made: list[str] = []

    def body(run: AgentRun) -> list[int]:
        return [run.step(name, lambda name=name: made.append(name) or len(made)) for name in "abc"]

    attempts = Attempts(body)
    assert attempts.killed(2)
    assert attempts.go()[0] == [1, 3, 4]
    assert made == ["a", "b", "b", "c"]


def test_a_call_that_raised_can_be_repeated_and_only_the_success_is_recorded() -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError
        return "good"

    def body(run: AgentRun) -> Any:
        for _ in range(5):
            try:
                return run.step("flaky", flaky)
            except OSError:
                continue
        raise AssertionError

    attempts = Attempts(body)
    assert [attempts.go()[0] for _ in range(2)] == ["good", "good"]
    assert len(tries) == 3


def test_results_of_parallel_tools_in_threads_are_in_the_order_of_the_calls() -> None:
    gate = threading.Barrier(4)

    def tool(n: int) -> int:
        gate.wait(60)
        return n

    def body(run: AgentRun) -> Any:
        reply = run.llm(lambda: chat_reply(None, *CALLS))
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda call: run.tool(call, tool), reply.tool_calls))

    result, run = Attempts(body, AfterToolCall()).go()
    assert result == [0, 1, 2, 3]
    assert [message.text for message in run.conversation.messages[1:]] == ["0", "1", "2", "3"]


def test_results_of_parallel_tools_in_tasks_are_in_the_order_of_the_calls() -> None:
    ended: list[int] = []

    async def tool(n: int) -> int:
        while len(ended) < 3 - n:
            await asyncio.sleep(0)
        ended.append(n)
        return n

    async def body(run: AgentRun) -> Any:
        reply = await run.llm(model)
        return await asyncio.gather(*(run.tool(call, tool) for call in reply.tool_calls))

    async def model() -> dict[str, Any]:
        return chat_reply(None, *CALLS)

    result, run = Attempts(body, AfterToolCall()).go()
    assert (result, ended) == ([0, 1, 2, 3], [3, 2, 1, 0])
    assert [message.text for message in run.conversation.messages[1:]] == ["0", "1", "2", "3"]


def late(run: AgentRun) -> None:
    """Ask for four tools and call only the third: its result is held back."""
    run.tool(run.llm(lambda: chat_reply(None, *CALLS)).tool_calls[2], lambda n: n)
    assert roles(run.conversation)[-1] == "assistant"


def test_held_results_are_appended_before_the_next_model_call() -> None:
    def body(run: AgentRun) -> None:
        late(run)
        run.llm(lambda own: chat_reply(str(roles(own))), run.conversation)

    _, run = Attempts(body).go()
    assert roles(run.conversation) == ["assistant", "tool", "assistant"]
    assert run.conversation.messages[-1].text == "['assistant', 'tool']"


def test_held_results_are_appended_when_an_iteration_ends() -> None:
    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=1):
            late(run)

    attempts = Attempts(body, EveryN(1))
    attempts.go()
    at_the_end = [one for one in attempts.store.list("a") if one.event == CheckpointEvent.ITERATION]
    assert [roles(one.conversation) for one in at_the_end] == [["assistant", "tool"]]


def test_held_results_are_appended_when_the_body_returns() -> None:
    _, run = Attempts(late).go()
    assert roles(run.conversation) == ["assistant", "tool"]


def test_repeating_a_tool_call_returns_the_same_result() -> None:
    made: list[int] = []

    def body(run: AgentRun) -> Any:
        [call] = run.llm(lambda: chat_reply(None, CALLS[1])).tool_calls
        return [run.tool(call, lambda n: made.append(n) or len(made)) for _ in range(3)]

    attempts = Attempts(body)
    assert attempts.go()[0] == attempts.go()[0] == [1, 1, 1]
    assert len(attempts.go()[1].conversation) == 2


def test_tool_call_ids_reused_in_every_reply_are_different_calls() -> None:
    made: list[str] = []

    def body(run: AgentRun) -> Any:
        results = []
        for iteration in range(3):
            reply = run.llm(
                lambda iteration: chat_reply(str(iteration), ("call_0", "f", "{}")), iteration
            )
            results.append(run.tool(reply.tool_calls[0], lambda: made.append("x") or len(made)))
        return results

    attempts = Attempts(body)
    assert attempts.go()[0] == attempts.go()[0] == [1, 2, 3]
    assert roles(attempts.go()[1].conversation) == ["assistant", "tool"] * 3


def test_an_id_used_by_two_consecutive_replies_gets_a_result_for_each() -> None:
    def body(run: AgentRun) -> list[str]:
        replies = [
            run.llm(lambda n: chat_reply(None, ("call_0", "f", f'{{"n": {n}}}')), n) for n in (1, 2)
        ]
        for reply in replies:
            run.tool(reply.tool_calls[0], lambda n: n)
        return [message.text for message in run.conversation.messages[2:]]

    attempts = Attempts(body)
    assert attempts.go()[0] == attempts.go()[0] == ["1", "2"]


def test_arguments_that_are_not_json_raise_a_value_error_in_the_body() -> None:
    attempts = Attempts(lambda run: run.tool(ToolCall(id="x", name="f", input="{"), len))
    with pytest.raises(ValueError, match="not JSON"):
        attempts.go()


@pytest.mark.parametrize("method", ["llm", "tool"])
def test_appending_to_the_conversation_inside_a_step_is_refused(method: str) -> None:
    def inner(run: AgentRun) -> Any:
        if method == "llm":
            return run.llm(lambda: SAID)
        return run.tool(ToolCall(id="x", name="f", input={}), lambda: 1)

    with pytest.raises(RunMisused, match="inside a step"):
        Attempts(lambda run: run.step("outer", lambda: inner(run))).go()


def test_a_nested_step_is_recorded_separately_from_an_outer_step_of_the_same_name() -> None:
    made: list[int] = []

    def count() -> int:
        made.append(1)
        return len(made)

    def body(run: AgentRun) -> Any:
        return run.step("outer", lambda: run.step("n", count)), run.step("n", count)

    attempts = Attempts(body)
    assert attempts.go()[0] == attempts.go()[0] == (1, 2)


def test_a_cancelled_body_that_continues_has_the_recorded_results() -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def model() -> dict[str, Any]:
        return chat_reply("x")

    async def body(run: AgentRun) -> int:
        task = asyncio.ensure_future(run.llm(model))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(run.conversation)

    attempts = Attempts(body)
    run = attempts.attempt()
    record = attempts.host.record

    def slow(step: Any, paid: Any, call: Any) -> None:
        begun.set()
        go_on.wait(60)
        record(step, paid, call)

    attempts.host.record = slow  # type: ignore[method-assign]
    assert attempts.go(run)[0] == 1
    assert len(attempts.store.steps("a", "run")) == 1


def test_a_fenced_run_stops_inside_a_task_group_too() -> None:
    async def tool(n: int) -> int:
        return n

    async def model() -> dict[str, Any]:
        return chat_reply(None, *CALLS)

    async def body(run: AgentRun) -> None:
        reply = await run.llm(model)
        async with asyncio.TaskGroup() as group:
            for call in reply.tool_calls:
                group.create_task(run.tool(call, tool))  # type: ignore[arg-type]

    attempts = Attempts(body)
    run = attempts.attempt()

    def fenced(run: AgentRun, event: CheckpointEvent, saved: Any) -> None:
        if event == CheckpointEvent.TOOL_CALL_COMPLETE:
            raise Fenced

    attempts.host.emit_recorded = fenced  # type: ignore[method-assign]
    with pytest.raises(BaseExceptionGroup) as caught:
        attempts.go(run)
    assert caught.group_contains(Fenced)


def test_before_a_loop_that_was_already_entered_steps_return_and_append_nothing() -> None:
    made: list[str] = []

    def model(conversation: Any, what: str) -> Any:
        made.append(what)
        return chat_reply(what, ("c", "f", "{}"))

    def body(run: AgentRun) -> list[str]:
        first = run.llm(model, run.conversation, "first")
        second = run.llm(model, run.conversation, "second")
        run.tool(second.tool_calls[0], lambda: made.append("tool"))
        for _ in run.iterations(limit=3):
            run.conversation.replace([Message.user("compacted")])
            run.tool(
                run.llm(model, run.conversation, "loop").tool_calls[0], lambda: made.append("tool")
            )
            run.state["n"] = run.state.get("n", 0) + 1
        return [first.text, second.text]

    attempts = Attempts(body, AfterToolCall())
    expected = attempts.go()
    attempts = Attempts(body, AfterToolCall())
    assert attempts.killed(20)
    made.clear()
    result, run = attempts.go()
    assert run.resumed
    assert (result, run.conversation, run.state) == (
        expected[0],
        expected[1].conversation,
        expected[1].state,
    )
    assert "first" not in made
    assert "second" not in made


def test_a_hand_off_waits_for_concurrent_calls() -> None:
    made: list[str] = []

    async def work(name: str) -> str:
        made.append(name)
        if name == "slow":
            # Until the other run gets the request to stop.
            while attempts.number == 1 and attempts.host.checks < 3:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        return name

    async def two_of_them(run: AgentRun, one: str, other: str) -> None:
        await run.step(one, work, one)
        await run.step(other, work, other)

    async def body(run: AgentRun) -> list[str]:
        async with asyncio.TaskGroup() as group:
            group.create_task(two_of_them(run, "fast", "later"))
            group.create_task(two_of_them(run, "slow", "last"))
        return made

    attempts = Attempts(body)
    run = attempts.attempt()
    attempts.host.stop_at_check = 3
    with pytest.raises(BaseExceptionGroup):
        attempts.go(run)
    attempts.go()
    assert sorted(made) == ["fast", "last", "later", "slow"]


def test_a_hand_off_inside_a_step_does_not_wait_for_that_step() -> None:
    async def outer(run: AgentRun) -> str:
        return await run.step("inner", work)

    async def work() -> str:
        return "done"

    async def body(run: AgentRun) -> str:
        async with asyncio.timeout(20):
            return await run.step("outer", outer, run)

    attempts = Attempts(body)
    run = attempts.attempt()
    attempts.host.stop_at_check = 2
    with pytest.raises(HandOff):
        attempts.go(run)
    assert attempts.go()[0] == "done"


def test_a_call_after_the_end_of_the_body_is_refused() -> None:
    async def body(run: AgentRun) -> None: ...

    async def late(run: AgentRun) -> None:
        await run.finish(cancel=False)
        await run.step("late", asyncio.sleep, 0)

    attempts = Attempts(body)
    with pytest.raises(RunMisused, match="after the body returned"):
        asyncio.run(late(attempts.attempt()))
    assert attempts.store.steps("a", "run") == []
