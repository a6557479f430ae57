"""``run.tools``: all tool calls of a reply, made once, in any order, with results in the order
of the calls.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel, validate_call

from celery_ckpt import (
    AfterToolCall,
    AgentRun,
    CheckpointEvent,
    Message,
    ToolCall,
    agent_task,
    current_run,
)
from celery_ckpt.errors import RunMisused, StepResultNotJson, StoreUnavailable
from celery_ckpt.run.bridge import AsyncBridge, SyncBridge
from celery_ckpt.run.control_flow import Fenced, HandOff
from celery_ckpt.testing import crash_everywhere
from tests.support.provider_agents import SHAPES
from tests.support.run_host import Attempts, OutOfTime, chat_reply

IDS = ["c0", "c1", "c2"]


class City(BaseModel):
    name: str
    degrees: int


def asking(*calls: tuple[str, str]) -> dict[str, Any]:
    """Return a reply that asks for tools; a call is (name, arguments as JSON)."""
    return chat_reply(None, *((f"c{n}", name, given) for n, (name, given) in enumerate(calls)))


def answers(run: AgentRun) -> list[str]:
    """Return the tool results that the model reads."""
    return [message.text for message in run.conversation if message.role == "tool"]


def body_with(kind: str, reply: Any, tools: Any, **options: Any) -> Callable[[AgentRun], Any]:
    """Return a body, sync or async, that asks once and runs the tools."""

    def body(run: AgentRun) -> Any:
        return run.tools(run.llm(lambda: reply), tools, **options)

    async def async_body(run: AgentRun) -> Any:
        return await run.tools(await run.llm(_awaited, reply), tools, **options)

    return body if kind == "sync" else async_body


async def _awaited(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


BOTH = pytest.mark.parametrize("kind", ["sync", "async"])
PARALLEL = pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "one by one"])


# -- results ------------------------------------------------------------------------------------------


@PARALLEL
@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_the_results_are_in_the_order_of_the_calls(shape: str, kind: str, parallel: bool) -> None:
    made: list[int] = []

    def tool(n: int) -> dict[str, int]:
        made.append(n)
        return {"n": n}

    reply = SHAPES[shape]("so", [(i, json.dumps({"n": n})) for n, i in enumerate(IDS)])
    attempts = Attempts(body_with(kind, reply, [tool], parallel=parallel))
    for _ in range(2):
        results, run = attempts.go()
        assert results == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert run.conversation.pending_tool_calls() == []
        answered = [i for message in run.conversation for i in message.answers]
        assert answered == IDS
    assert sorted(made) == [0, 1, 2]


def test_the_calls_of_a_sync_body_run_concurrently() -> None:
    gate = threading.Barrier(3)

    def tool(n: int) -> int:
        gate.wait(60)
        return n

    reply = asking(*(("tool", json.dumps({"n": n})) for n in range(3)))
    results, run = Attempts(body_with("sync", reply, {"tool": tool})).go()
    assert results == [0, 1, 2]
    assert answers(run) == ["0", "1", "2"]


def test_the_calls_of_an_async_body_run_concurrently() -> None:
    ended: list[int] = []

    async def tool(n: int) -> int:
        while len(ended) < 2 - n:
            await asyncio.sleep(0)
        ended.append(n)
        return n

    reply = asking(*(("tool", json.dumps({"n": n})) for n in range(3)))
    results, run = Attempts(body_with("async", reply, [tool])).go()
    assert (results, ended) == ([0, 1, 2], [2, 1, 0])
    assert answers(run) == ["0", "1", "2"]


def test_single_and_sequential_calls_need_no_thread() -> None:
    seen: set[int] = set()

    def tool() -> None:
        seen.add(threading.get_ident())

    for reply, parallel in ((asking(("tool", "{}")), True), (asking(*[("tool", "{}")] * 3), False)):
        Attempts(body_with("sync", reply, [tool], parallel=parallel)).go()
    assert seen == {threading.get_ident()}


def test_many_calls_share_a_bounded_number_of_threads() -> None:
    seen: set[int] = set()
    reply = asking(*[("tool", "{}")] * 60)

    def tool() -> None:
        seen.add(threading.get_ident())

    results, run = Attempts(body_with("sync", reply, [tool])).go()
    assert (len(results), len(answers(run))) == (60, 60)
    assert 1 <= len(seen) <= 16


@BOTH
def test_a_reply_without_calls_has_no_results(kind: str) -> None:
    attempts = Attempts(body_with(kind, chat_reply("done"), {}))
    results, run = attempts.go()
    assert results == []
    assert len(run.conversation) == 1
    assert [event for _, event in attempts.host.events] == [CheckpointEvent.LLM_RESPONSE]


@PARALLEL
@BOTH
def test_each_call_is_recorded_by_its_id_and_emitted(kind: str, parallel: bool) -> None:
    reply = asking(("tool", "{}"), ("tool", "{}"))
    attempts = Attempts(body_with(kind, reply, {"tool": lambda: 1}, parallel=parallel))
    attempts.go()
    recorded = {step.key: step.value for step in attempts.store.steps("a", "run")[1:]}
    assert recorded == {"0:call:c0": 1, "0:call:c1": 1}
    events = [event for _, event in attempts.host.events]
    assert events.count(CheckpointEvent.TOOL_CALL_COMPLETE) == 2


@BOTH
def test_a_declared_model_is_restored_and_an_error_in_its_place_is_text(kind: str) -> None:
    def weather(name: str) -> City:
        if name == "Atlantis":
            raise LookupError("no such city")
        return City(name=name, degrees=12)

    reply = asking(("weather", '{"name": "Oslo"}'), ("weather", '{"name": "Atlantis"}'))
    attempts = Attempts(body_with(kind, reply, [weather]))
    for _ in range(2):
        results, run = attempts.go()
        assert results == [City(name="Oslo", degrees=12), "Error: LookupError: no such city"]
        assert answers(run) == ['{"name":"Oslo","degrees":12}', "Error: LookupError: no such city"]


@PARALLEL
@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_calls_that_share_an_id_keep_their_own_results(shape: str, kind: str, parallel: bool) -> None:
    given = [("same", '{"n":0}'), ("other", '{"n":1}'), ("same", '{"n":2}')]
    last = threading.Event()

    def tool(n: int) -> str:
        if n == 2:
            last.set()
        elif n == 0:
            last.wait(0.2)  # if they ran concurrently, the last one would end first
        return f"result {n}"

    async def async_tool(n: int) -> str:
        await asyncio.sleep(0.02 * (2 - n))
        return f"result {n}"

    tools = {"tool": tool if kind == "sync" else async_tool}
    attempts = Attempts(body_with(kind, SHAPES[shape]("so", given), tools, parallel=parallel))
    for _ in range(3):
        results, run = attempts.go()
        assert results == ["result 0", "result 1", "result 2"]
        said = json.dumps([message.to_dict() for message in run.conversation])
        assert said.count("result 0") == said.count("result 1") == said.count("result 2") == 1
        assert said.index("result 0") < said.index("result 2")


def test_ids_reused_in_every_reply_are_different_calls() -> None:
    made: list[int] = []

    def body(run: AgentRun) -> Any:
        found = []
        for iteration in range(3):
            reply = run.llm(lambda iteration: asking(("f", "{}"), ("f", "{}")), iteration)
            found.append(run.tools(reply, {"f": lambda: made.append(1) or "x"}))
        return found

    attempts = Attempts(body)
    assert attempts.go()[0] == attempts.go()[0] == [["x", "x"]] * 3
    assert len(made) == 6


@BOTH
def test_a_tool_can_use_any_parameter_names(kind: str) -> None:
    def tool(fn: str, self: str, call: str, key: str) -> str:
        return fn + self + call + key

    given = '{"fn": "a", "self": "b", "call": "c", "key": "d"}'
    assert Attempts(body_with(kind, asking(("tool", given)), [tool])).go()[0] == ["abcd"]
    call = ToolCall(id="x", name="tool", input=given)
    assert Attempts(lambda run: run.tool(call, tool)).go()[0] == "abcd"


# -- errors ------------------------------------------------------------------------------------------


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def weather(city: str, days: int = 1) -> str:
    if city == "Atlantis":
        raise ValueError("no such city")
    if city == "silent":
        raise TimeoutError
    if city == "speechless":
        raise Speechless
    if city == "odd":
        raise ValueError("half \ud800 a character")
    if city == "wordy":
        raise ValueError("x" * 100_000)
    return f"{city} {days}"


@validate_call
def strict(days: int) -> int:
    if days == 13:
        City.model_validate({})
    return days


class Forecast:
    @validate_call
    def strict(self, days: int) -> int:
        return days


TOOLS = {"weather": weather, "strict": strict, "of_forecast": Forecast().strict, "max": max}
WRONG = [
    (
        "wether",
        "{}",
        "Error: unknown tool 'wether'. Available tools: weather, strict, of_forecast, max.",
    ),
    ("", "{}", "Error: unknown tool ''. Available tools: weather, strict, of_forecast, max."),
    ("weather", "{", "Error: invalid arguments for 'weather': not JSON: EOF while parsing an object"),
    ("weather", '["Oslo"]', "Error: invalid arguments for 'weather': not a JSON object"),
    ("weather", "{}", "Error: invalid arguments for 'weather': missing a required argument: 'city'"),
    (
        "weather",
        '{"city": "Oslo", "hours": 3}',
        "Error: invalid arguments for 'weather': got an unexpected keyword argument 'hours'",
    ),
    (
        "strict",
        '{"days": "many"}',
        "Error: invalid arguments for 'strict': days: Input should be a valid integer, unable to parse",
    ),
    (
        "of_forecast",
        '{"days": []}',
        "Error: invalid arguments for 'of_forecast': days: Input should be",
    ),
    ("strict", '{"days": 13}', "Error: ValidationError: 2 validation errors for City"),
    ("weather", '{"city": "Atlantis"}', "Error: ValueError: no such city"),
    ("weather", '{"city": "silent"}', "Error: TimeoutError"),
    ("weather", '{"city": "speechless"}', "Error: Speechless"),
    ("weather", '{"city": "odd"}', "Error: ValueError: half ? a character"),
    ("weather", '{"city": "wordy"}', "Error: ValueError: xxx"),
    ("max", '{"a": 1}', "Error: TypeError: max"),
]


@BOTH
@pytest.mark.parametrize(("name", "given", "says"), WRONG)
def test_a_tool_failure_becomes_a_result_for_the_model(
    kind: str, name: str, given: str, says: str
) -> None:
    reply = asking((name, given), ("weather", '{"city": "Oslo"}'))
    attempts = Attempts(body_with(kind, reply, TOOLS))
    (text, good), run = attempts.go()
    assert text.startswith(says)
    assert len(text) < 2_100
    assert good == "Oslo 1"
    assert answers(run) == [text, good]
    assert attempts.go()[0] == [text, good]
    assert attempts.host.writes == 0


def test_a_failure_is_recorded_and_the_tool_is_not_called_again() -> None:
    made: list[int] = []

    def tool() -> None:
        made.append(1)
        raise ValueError(f"for the {len(made)}. time")

    attempts = Attempts(body_with("sync", asking(("tool", "{}")), [tool]))
    assert attempts.go()[0] == attempts.go()[0] == ["Error: ValueError: for the 1. time"]
    assert made == [1]


def test_a_tool_added_later_does_not_change_recorded_results() -> None:
    reply = asking(("late", "{}"))
    attempts = Attempts(body_with("sync", reply, []))
    first, _ = attempts.go()
    attempts.body = body_with("sync", reply, {"late": lambda: City(name="x", degrees=1)})
    assert attempts.go()[0] == first == ["Error: unknown tool 'late'. Available tools: none."]


@PARALLEL
@BOTH
def test_a_retryable_error_is_raised_after_the_other_calls_are_recorded(
    kind: str, parallel: bool
) -> None:
    made: list[int] = []

    def tool(n: int) -> int:
        made.append(n)
        if n == 1 and made.count(1) == 1:
            raise ConnectionResetError("try again")
        return n

    reply = asking(*(("tool", json.dumps({"n": n})) for n in range(3)))
    attempts = Attempts(body_with(kind, reply, [tool], parallel=parallel, retry_on=OSError))
    with pytest.raises(ConnectionResetError, match="try again"):
        attempts.go()
    recorded = [step.value for step in attempts.store.steps("a", "run")[1:]]
    assert sorted(recorded) == ([0, 2] if parallel else [0])
    assert attempts.go()[0] == [0, 1, 2]
    assert sorted(made) == [0, 1, 1, 2]


def test_a_retryable_error_is_found_inside_an_exception_group() -> None:
    async def tool() -> None:
        raise ExceptionGroup("", [ValueError(), ExceptionGroup("", [TimeoutError()])])

    attempts = Attempts(body_with("async", asking(("tool", "{}")), [tool], retry_on=(TimeoutError,)))
    with pytest.raises(ExceptionGroup):
        attempts.go()
    assert len(attempts.store.steps("a", "run")) == 1


class Enough(BaseException):
    pass


@PARALLEL
@BOTH
@pytest.mark.parametrize(
    "error", [OutOfTime(), StoreUnavailable(where="x", reason="y"), HandOff(), Fenced(), Enough()]
)
def test_an_error_that_is_not_of_the_tool_is_raised(
    kind: str, parallel: bool, error: BaseException
) -> None:
    def tool(n: int) -> int:
        if n == 0:
            raise error
        return n

    reply = asking(("tool", '{"n": 0}'), ("tool", '{"n": 1}'))
    attempts = Attempts(body_with(kind, reply, [tool], parallel=parallel))
    run = attempts.attempt()
    with pytest.raises(type(error)) as caught:
        attempts.go(run)
    assert caught.value is error
    recorded = [step.value for step in attempts.store.steps("a", "run")[1:]]
    assert recorded == ([1] if parallel else [])


@BOTH
def test_the_cancellation_of_a_tool_is_not_a_result(kind: str) -> None:
    def tool() -> None:
        raise asyncio.CancelledError

    attempts = Attempts(body_with(kind, asking(("tool", "{}"), ("tool", "{}")), [tool]))
    with pytest.raises(asyncio.CancelledError):
        attempts.go()
    assert len(attempts.store.steps("a", "run")) == 1


@BOTH
def test_a_result_that_is_not_json_is_a_programming_error(kind: str) -> None:
    reply = asking(("bad", "{}"), ("good", "{}"))
    attempts = Attempts(body_with(kind, reply, {"bad": object, "good": lambda: 1}))
    with pytest.raises(StepResultNotJson, match="Step 'bad'"):
        attempts.go()
    assert [step.value for step in attempts.store.steps("a", "run")[1:]] == [1]


def test_an_async_tool_in_a_sync_body_is_a_programming_error() -> None:
    async def tool() -> None: ...

    with pytest.raises(TypeError, match=r"<locals>\.tool is async, but the body is not"):
        Attempts(body_with("sync", asking(("tool", "{}")), [tool])).go()


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ({"f": "text"}, "as tools, got str"),
        (["text"], "as tools, got str"),
        ([weather, weather], "two tools named 'weather'"),
    ],
)
def test_invalid_tools_are_refused(tools: Any, says: str) -> None:
    with pytest.raises(RunMisused, match=says):
        Attempts(body_with("sync", asking(("f", "{}")), tools)).go()


@pytest.mark.parametrize("reply", ["text", None, {"role": "assistant"}, [Message.user("x"), 3]])
def test_an_invalid_reply_is_refused(reply: Any) -> None:
    with pytest.raises(RunMisused, match=r"Pass what run\.llm returned"):
        Attempts(lambda run: run.tools(reply, [])).go()


def test_calling_tools_inside_a_step_is_refused() -> None:
    with pytest.raises(RunMisused, match=r"run\.tools was called inside a step"):
        Attempts(lambda run: run.step("outer", run.tools, Message.user("x"), [])).go()


# -- concurrent calls ---------------------------------------------------------------------------------


@BOTH
def test_a_hand_off_waits_for_the_calls_in_flight(kind: str) -> None:
    made: list[int] = []
    is_stopping = threading.Event()

    def tool(n: int) -> int:
        made.append(n)
        assert is_stopping.wait(60)
        return n

    async def async_tool(n: int) -> int:
        made.append(n)
        await asyncio.to_thread(is_stopping.wait, 60)
        return n

    reply = asking(*(("tool", json.dumps({"n": n})) for n in range(3)))
    attempts = Attempts(
        body_with(kind, reply, {"tool": tool if kind == "sync" else async_tool}), AfterToolCall()
    )
    run = attempts.attempt()

    def check(run: AgentRun) -> None:
        attempts.host.checks += 1
        if attempts.host.checks == 4:  # that of the third tool
            is_stopping.set()
            raise HandOff

    attempts.host.check = check  # type: ignore[method-assign]
    with pytest.raises(HandOff):
        attempts.go(run)
    assert len(made) == 2
    assert len(attempts.store.steps("a", "run")) == 3
    assert attempts.go()[0] == [0, 1, 2]
    assert sorted(made) == [0, 1, 2]


@BOTH
def test_fenced_takes_precedence_over_every_other_error(kind: str) -> None:
    errors: dict[int, BaseException] = {0: OutOfTime(), 1: HandOff(), 2: Fenced(), 3: Enough()}

    def tool(n: int) -> None:
        raise errors[n]

    reply = asking(*(("tool", json.dumps({"n": n})) for n in errors))
    with pytest.raises(Fenced):
        Attempts(body_with(kind, reply, [tool])).go()


@pytest.mark.parametrize("kind", [SyncBridge, AsyncBridge])
def test_the_most_important_of_several_errors_is_raised(kind: Any) -> None:
    async def raising(error: BaseException) -> None:
        raise error

    def raised(*errors: BaseException) -> BaseException:
        gathered = kind().gather([partial(raising, error) for error in errors])
        try:
            SyncBridge().run(gathered) if kind is SyncBridge else asyncio.run(gathered)
        except BaseException as error:
            return error
        raise AssertionError

    stop, enough, first, second = HandOff(), Enough(), ValueError(), KeyError()
    assert raised(first, second) is first
    assert raised(first, enough) is enough
    assert raised(enough, stop) is stop
    assert isinstance(raised(first, BaseExceptionGroup("", [Fenced()]), stop), Fenced)


def test_an_interrupted_sync_body_waits_for_its_calls_and_starts_no_more() -> None:
    begun, go_on = threading.Barrier(3), threading.Event()
    made: list[int] = []

    def tool(n: int) -> int:
        made.append(n)
        begun.wait(60)
        assert go_on.wait(60)
        return n

    def interrupted(futures: Any) -> None:
        begun.wait(60)
        go_on.set()
        raise OutOfTime

    reply = asking(*(("tool", json.dumps({"n": n})) for n in range(6)))
    attempts = Attempts(body_with("sync", reply, [tool]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("celery_ckpt.run.bridge.wait", interrupted)
        patch.setattr("celery_ckpt.run.bridge._MOST_CALLS", 2)
        with pytest.raises(OutOfTime):
            attempts.go()
    recorded = [step.value for step in attempts.store.steps("a", "run")[1:]]
    assert sorted(recorded) == sorted(made)
    assert len(made) < 6


def test_a_cancelled_async_body_cancels_its_tools_and_keeps_the_recorded_results() -> None:
    made: list[str] = []

    async def quick() -> str:
        return "quick"

    async def slow() -> str:
        if not made:
            made.append("begun")
            while True:
                await asyncio.sleep(0.01)
        return "slow"

    async def body(run: AgentRun) -> Any:
        reply = await run.llm(_awaited, asking(("quick", "{}"), ("slow", "{}")))
        work = asyncio.ensure_future(run.tools(reply, [quick, slow]))
        while len(attempts.store.steps("a", "run")) < 2 or not made:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert answers(run) == ["quick"]
        return await run.tools(reply, [quick, slow])

    attempts = Attempts(body)
    assert attempts.go()[0] == ["quick", "slow"]
    assert len(attempts.store.steps("a", "run")) == 3


_where: ContextVar[str] = ContextVar("where", default="nowhere")


def test_tools_in_threads_see_the_context_of_the_body() -> None:
    def tool() -> str:
        return _where.get()

    def body(run: AgentRun) -> Any:
        _where.set("in the body")
        return run.tools(run.llm(lambda: asking(("tool", "{}"), ("tool", "{}"))), [tool])

    assert Attempts(body).go()[0] == ["in the body"] * 2


@BOTH
def test_steps_and_keys_inside_tools_belong_to_their_call(kind: str) -> None:
    keys: dict[str, set[str]] = {"0": set(), "1": set()}
    made: list[int] = []
    runs: list[AgentRun] = []

    def pay(n: int) -> str:
        keys[str(n)].add(runs[-1].idempotency_key("pay"))
        if len(runs) == 1:
            raise ConnectionError
        return runs[-1].step("inner", lambda: made.append(n) or f"paid {n}")

    async def async_pay(n: int) -> str:
        keys[str(n)].add(runs[-1].idempotency_key("pay"))
        if len(runs) == 1:
            raise ConnectionError
        inner: str = await runs[-1].step("inner", _awaited, f"paid {n}")
        return inner

    tool = {"pay": pay if kind == "sync" else async_pay}
    reply = asking(("pay", '{"n": 0}'), ("pay", '{"n": 1}'))
    attempts = Attempts(body_with(kind, reply, tool, retry_on=ConnectionError))
    for _ in range(2):
        run = attempts.attempt()
        runs.append(run)
        try:
            results, _ = attempts.go(run)
        except ConnectionError:
            assert len(runs) == 1
    assert results == ["paid 0", "paid 1"]
    assert [len(own) for own in keys.values()] == [1, 1]
    assert not keys["0"] & keys["1"]


# -- whole agents -------------------------------------------------------------------------------------


def _reply(conversation: Any, iteration: int) -> Any:
    given = [("ok", f'{{"n":{iteration}}}'), ("fails", "{}"), ("unknown", "{}"), ("ok", '{"m":1}')]
    return asking(*given) if iteration < 3 else chat_reply(f"done after {len(conversation)}")


def _ok(n: int) -> dict[str, Any]:
    return {"n": n, "run": current_run().run_id}


def _fails() -> None:
    raise ValueError("never works")


_TOOLS: dict[str, Callable[..., Any]] = {"ok": _ok, "fails": _fails}


def _sync_agent(run: AgentRun) -> Any:
    if not run.resumed:
        run.conversation.append(Message.user("go"))
    for iteration in run.iterations(limit=3):
        reply = run.llm(_reply, run.conversation, iteration)
        run.state["found"] = [*run.state.get("found", []), run.tools(reply, _TOOLS)]
    return run.state["found"]


async def _async_agent(run: AgentRun) -> Any:
    if not run.resumed:
        run.conversation.append(Message.user("go"))
    async for iteration in run.iterations(limit=3):
        reply = await run.llm(_async_reply, run.conversation, iteration)
        run.state["found"] = [*run.state.get("found", []), await run.tools(reply, _TOOLS)]
    return run.state["found"]


async def _async_reply(conversation: Any, iteration: int) -> Any:
    return _reply(conversation, iteration)


@pytest.mark.parametrize("body", [_sync_agent, _async_agent], ids=["sync", "async"])
@pytest.mark.parametrize("strategy", ["after_tool_call", "every:1", "never"])
def test_an_agent_that_calls_tools_ends_the_same_wherever_it_is_killed(
    body: Any, strategy: str
) -> None:
    app = Celery("tools", set_as_current=False)
    app.conf.ckpt_store_url = "memory://"
    # Not shared: the apps of other tests must not get it.
    task = agent_task(app=app, strategy=strategy, shared=False)(body)
    report = crash_everywhere(task)
    assert report.kills > 20
    assert [len(found) for found in report.result] == [4, 4, 0]
