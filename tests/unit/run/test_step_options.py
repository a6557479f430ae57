"""``run.step`` for frameworks: calls with an identity, a kind, a hook and a usage of their own."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from celery_ckpt import (
    AfterLlmResponse,
    AfterToolCall,
    AgentRun,
    CheckpointEvent,
    CheckpointStrategy,
    EveryN,
    Message,
    Never,
    Usage,
    agent_task,
)
from celery_ckpt.errors import RunMisused, StepChanged, StoreUnavailable
from celery_ckpt.run.control_flow import HandOff
from celery_ckpt.testing import crash_everywhere
from tests.support.run_host import Attempts, Host, OutOfTime

app = Celery("options", set_as_current=False)
app.conf.ckpt_store_url = "memory://"
EITHER = AfterToolCall() | AfterLlmResponse()
STRATEGIES: dict[str, CheckpointStrategy] = {"never": Never(), "every": EveryN(1), "calls": EITHER}


def killed_everywhere(body: Callable[..., Any], strategy: CheckpointStrategy) -> None:
    """Kill a run at every write: result, conversation, state, usage and payment stay the same."""

    def end(attempts: Attempts) -> Any:
        result, run = attempts.go()
        assert attempts.host.changes == []
        return result, run.conversation.to_dict(), run.state, run.usage

    uninterrupted = Attempts(body, strategy)
    expected = end(uninterrupted)
    for place in range(2 * uninterrupted.host.writes):
        again = Attempts(body, strategy)
        assert again.killed(place)
        assert end(again) == expected
        assert end(again) == expected, "once more"


# -- key -------------------------------------------------------------------------------------------


def test_a_key_identifies_a_call_whatever_its_arguments_and_its_name_are() -> None:
    made: list[str] = []
    given = ["name", "a"]

    def body(run: AgentRun) -> str:
        def call(text: str) -> str:
            made.append(text)
            return text

        return run.step(given[0], call, given[1], key="the only one")

    attempts = Attempts(body)
    assert attempts.go()[0] == "a"
    given[:] = ["another name", "b"]
    assert attempts.go()[0] == "a"
    assert made == ["a"]
    assert attempts.host.changes == ["another name"]


def test_a_call_with_a_key_and_the_same_arguments_has_not_changed() -> None:
    attempts = Attempts(lambda run: run.step("f", str, 1, key="k"))
    attempts.go()
    attempts.go()
    assert attempts.host.changes == []
    (step,) = attempts.store.steps("a", "run")
    assert step.key.startswith("key:k@")


def test_keys_are_independent_of_order_and_of_other_calls() -> None:
    order = [0, 1, 2]

    def body(run: AgentRun) -> dict[int, int]:
        run.step("f", lambda: "without a key")
        return {n: run.step("f", lambda n: n, n, key=f"k{n}") for n in order}

    attempts = Attempts(body)
    attempts.go()
    order.reverse()
    assert attempts.go()[0] == {0: 0, 1: 1, 2: 2}
    assert attempts.host.writes == 0
    assert attempts.host.changes == []


def test_an_unclaimed_key_is_not_a_change_of_a_call_without_one() -> None:
    keys: list[str | None] = ["k"]

    def body(run: AgentRun) -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(run.step, "f", str, 1, key=keys[0]).result()

    attempts = Attempts(body)
    attempts.go()
    keys[0] = None
    attempts.go()
    assert attempts.host.changes == []


def test_a_key_that_two_calls_have_is_refused() -> None:
    def body(run: AgentRun) -> None:
        run.step("f", str, 1, key="k")
        run.step("g", str, 2, key="k")

    with pytest.raises(RunMisused, match="have the key 'k'"):
        Attempts(body).go()


def test_a_failed_call_is_made_again_with_its_key_and_other_arguments() -> None:
    def body(run: AgentRun) -> int:
        def failing(n: int) -> int:
            if n == 0:
                raise LookupError
            return n

        try:
            return run.step("f", failing, 0, key="k")
        except LookupError:
            return run.step("f", failing, 1, key="k")

    attempts = Attempts(body)
    assert [attempts.go()[0], attempts.go()[0]] == [1, 1]
    assert attempts.host.writes == 0
    assert attempts.host.changes == ["f"], "the first try finds the record of the second"


def test_any_text_can_be_a_key() -> None:
    keys = ["a:b:0", "x" * 1000, "@", "in x:y", "\ud800", "😀"]
    attempts = Attempts(lambda run: [run.step("f", len, key, key=key) for key in keys])
    attempts.go()
    assert attempts.go()[0] == [len(key) for key in keys]
    assert attempts.host.writes == 0


@agent_task(app=app, on_changed="fail")
def strict(run: AgentRun) -> Any:
    # The arguments differ from attempt to attempt.
    run.step("ask", lambda attempt: "answer", run.attempt, key="q")
    return run.step("then", str, 1)


def test_the_run_fails_if_the_task_wants_no_changes() -> None:
    with pytest.raises(StepChanged, match="ask"):
        crash_everywhere(strict)


@agent_task(app=app)
def lenient(run: AgentRun) -> Any:
    run.step("ask", lambda attempt: "answer", run.attempt, key="q")
    return run.step("then", str, 1)


def test_the_record_is_used_if_the_task_allows_changes() -> None:
    assert crash_everywhere(lenient).calls == 2


@pytest.mark.parametrize("parallel", ["gather", "loop", "threads"])
def test_keys_work_in_parallel_calls(parallel: str) -> None:
    async def value(n: int) -> int:
        for _ in range(9 - 3 * n):
            await asyncio.sleep(0)
        return n

    async def gathered(run: AgentRun) -> list[int]:
        calls = (run.aio.step("f", value, n, key=f"k{n}", kind="tool") for n in range(3))
        return list(await asyncio.gather(*calls))

    def body(run: AgentRun) -> list[int]:
        if parallel == "loop":
            return asyncio.run(gathered(run))
        with ThreadPoolExecutor() as threads:
            calls = [
                threads.submit(run.step, "f", lambda n: n, n, key=f"k{n}", kind="tool")
                for n in range(3)
            ]
            return [call.result() for call in calls]

    for strategy in STRATEGIES.values():
        killed_everywhere(gathered if parallel == "gather" else body, strategy)


def test_a_key_works_inside_a_call() -> None:
    def body(run: AgentRun) -> int:
        def outer() -> int:
            return (
                run.step("inner", lambda: 1, key="inner", kind="llm", usage=Usage(input_tokens=3)) + 1
            )

        return run.step("outer", outer, key="outer", kind="tool")

    killed_everywhere(body, EITHER)
    attempts = Attempts(body)
    attempts.go()
    assert [event for _, event in attempts.host.events] == [CheckpointEvent.TOOL_CALL_COMPLETE]


# -- kind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("llm", [CheckpointEvent.LLM_RESPONSE]),
        ("tool", [CheckpointEvent.TOOL_CALL_COMPLETE]),
        ("step", []),
        (None, []),
    ],
)
def test_a_kind_emits_its_event_once_and_does_not_touch_the_conversation(
    kind: Any, events: list[CheckpointEvent]
) -> None:
    attempts = Attempts(lambda run: run.step("f", dict, role="assistant", content="x", kind=kind))
    _, run = attempts.go()
    assert [event for _, event in attempts.host.events] == events
    assert len(run.conversation) == 0
    attempts.go()
    assert attempts.host.events == []


def test_the_strategy_decides_about_a_checkpoint_and_a_resume_replays() -> None:
    def body(run: AgentRun) -> list[int]:
        return [run.step("f", lambda n: n, n, key=str(n), kind="llm") for n in range(3)]

    attempts = Attempts(body, AfterLlmResponse())
    assert attempts.killed(6), "after the first half of the second event"
    assert attempts.latest.event == CheckpointEvent.LLM_RESPONSE
    assert attempts.go()[0] == [0, 1, 2]
    assert attempts.number == 2


# -- on_value --------------------------------------------------------------------------------------


class Reply(BaseModel):
    text: str


def scripted(run: AgentRun) -> list[str]:
    """Mirror what a framework says, before the loop, in it, and after it."""

    def add(reply: Reply) -> None:
        run.conversation.append(Message.assistant(reply.text))
        run.state["said"] = [*run.state.get("said", []), reply.text]
        run.state.setdefault("count", []).append(len(run.conversation))

    def say(text: str, key: str) -> Reply:
        call = functools.partial(Reply, text=text)
        return run.step("say", call, key=key, kind="llm", returns=Reply, on_value=add)

    said = [say("before", "0").text]
    for n in run.iterations(limit=2):
        said.append(say(f"in {n}", f"a{n}").text)
        run.step("tool", str, n, key=f"t{n}", kind="tool", on_value=lambda v: run.state.update(last=v))
        said.append(say(f"again {n}", f"b{n}").text)
    said.append(say("after", "z").text)
    return [*run.state["said"], said[-1]]


async def scripted_async(run: AgentRun) -> list[str]:
    def add(text: str) -> None:
        run.conversation.append(Message.assistant(text))
        run.state["said"] = [*run.state.get("said", []), text]

    async def say(text: str) -> str:
        await asyncio.sleep(0)
        return text

    async for n in run.iterations(limit=2):
        await run.step("say", say, f"in {n}", key=f"a{n}", kind="llm", on_value=add)
        await run.step("say", say, f"out {n}", on_value=add)
    return run.state["said"]


@pytest.mark.parametrize("body", [scripted, scripted_async], ids=["sync", "async"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_hook_changes_is_the_same_after_a_kill_at_any_write(body: Any, strategy: str) -> None:
    killed_everywhere(body, STRATEGIES[strategy])


@agent_task(app=app, strategy="every:1")
def hooked(run: AgentRun) -> list[str]:
    return scripted(run)


@agent_task(app=app, strategy="after_llm_response")
async def hooked_async(run: AgentRun) -> list[str]:
    return await scripted_async(run)


def manually(run: AgentRun) -> int:
    """Take exact checkpoints between steps that change the run."""
    for n in range(3):
        run.step("add", lambda n: n, n, key=str(n), kind="llm", on_value=lambda n: count(run, n))
        run.checkpoint()
        run.step("more", lambda n: n, n, on_value=lambda n: count(run, 10 * n))
    return run.state["sum"]


def count(run: AgentRun, n: int) -> None:
    run.state["sum"] = run.state.get("sum", 0) + n
    run.conversation.append(Message.user(str(n)))


@agent_task(app=app, strategy="after_llm_response")
def manual(run: AgentRun) -> int:
    return manually(run)


@pytest.mark.parametrize("task", [hooked, hooked_async, manual], ids=["sync", "async", "manual"])
def test_what_a_hook_changes_survives_kills_and_hand_offs(task: Any) -> None:
    assert crash_everywhere(task).kills > 10


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_exact_checkpoint_contains_what_hooks_changed_and_no_resume_changes_it_twice(
    strategy: str,
) -> None:
    killed_everywhere(manually, STRATEGIES[strategy])


def test_the_checkpoint_of_the_event_contains_what_the_hook_changed() -> None:
    def body(run: AgentRun) -> None:
        run.step("ask", lambda: "hello", kind="llm", on_value=lambda v: noted(run, v))
        raise HandOff

    def noted(run: AgentRun, value: str) -> None:
        run.conversation.append(Message.assistant(value))
        run.state["seen"] = value

    attempts = Attempts(body, AfterLlmResponse())
    run = attempts.attempt()
    with pytest.raises(HandOff):
        body(run)
    assert [message.text for message in attempts.latest.conversation] == ["hello"]
    assert attempts.latest.state == {"seen": "hello"}
    assert attempts.host.writes == 2, "one write in a real store: the step with its checkpoint"


def test_messages_that_a_hook_adds_are_not_changes_of_the_body() -> None:
    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=1):
            run.step("ask", lambda: "x", on_value=lambda v: run.conversation.append(Message.user(v)))
            run.checkpoint()
            assert not run.is_manual
            run.conversation.append(Message.user("own"))
            run.step("ask", lambda: "y", on_value=lambda v: run.conversation.append(Message.user(v)))
            run.checkpoint()
            assert run.is_manual

    Attempts(body).go()


def test_a_tool_call_that_a_hook_has_added_can_be_made() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"n": 2}'}}

    def body(run: AgentRun) -> int:
        for _ in run.iterations(limit=1):
            run.step(
                "ask",
                lambda: {"role": "assistant", "content": None, "tool_calls": [call]},
                kind="llm",
                on_value=run.conversation.append,
            )
            (asked,) = run.conversation.pending_tool_calls()
            result = run.tool(asked, lambda n: n + 1)
            assert not run.is_manual
        return result

    killed_everywhere(body, EITHER)


class Unavailable(Host):
    failures = 1

    def record(self, step: Any, paid: Usage, call: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the store is gone")
        super().record(step, paid, call)


@pytest.mark.parametrize("kind", ["llm", "step"])
def test_a_hook_whose_step_was_not_recorded_has_changed_nothing(kind: Any) -> None:
    def body(run: AgentRun) -> int:
        run.state["own"] = [1]
        options: dict[str, Any] = {"kind": kind, "on_value": lambda n: count(run, n)}
        with pytest.raises(StoreUnavailable):
            run.step("add", int, "5", **options)
        assert run.state == {"own": [1]}
        assert len(run.conversation) == 0
        own = run.state["own"]
        run.step("add", int, "5", **options)
        own.append(2)
        return run.state["sum"]

    attempts = Attempts(body, EITHER)
    run = attempts.attempt()
    run._host.__class__ = Unavailable
    assert attempts.go(run)[0] == 5
    assert run.state == {"own": [1, 2], "sum": 5}
    assert len(run.conversation) == 1


def test_an_error_of_a_hook_is_raised_after_the_result_was_recorded_and_in_every_replay() -> None:
    def body(run: AgentRun) -> str:
        def broken(value: str) -> None:
            run.state["tried"] = run.state.get("tried", 0) + 1
            raise LookupError(value)

        with pytest.raises(LookupError, match="paid"):
            run.step("ask", lambda: "paid", kind="llm", on_value=broken)
        return run.step("then", str, run.state["tried"])

    killed_everywhere(body, EITHER)
    attempts = Attempts(body)
    attempts.go()
    assert [step.value for step in attempts.store.steps("a", "run")] == ["paid", "1"]


def test_a_time_limit_inside_a_hook_neither_loses_the_result_nor_half_of_the_change() -> None:
    interruptions = [OutOfTime()]

    def body(run: AgentRun) -> str:
        def add(value: str) -> None:
            run.state["a"] = value
            if interruptions:
                raise interruptions.pop()
            run.state["b"] = run.state.get("b", "") + value

        try:
            run.step("ask", lambda: "x", kind="llm", on_value=add)
        except OutOfTime:
            return "out of time"
        return "done"

    attempts = Attempts(body)
    result, run = attempts.go()
    assert (result, run.state) == ("out of time", {"a": "x", "b": "x"})
    assert len(attempts.store.steps("a", "run")) == 1
    assert attempts.go()[1].state == {"a": "x", "b": "x"}


def test_a_call_that_is_cancelled_while_it_is_recorded_changes_the_run_once() -> None:
    async def body(run: AgentRun) -> int:
        async def five() -> int:
            return 5

        call: Any = functools.partial(run.step, "add", five, key="k", on_value=lambda n: count(run, n))
        task = asyncio.ensure_future(call())
        while "sum" not in run.state:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await call()
        return run.state["sum"]

    attempts = Attempts(body)
    assert attempts.go()[0] == 5
    assert len(attempts.store.steps("a", "run")) == 1


def test_a_hook_runs_where_the_body_runs() -> None:
    places: list[int] = []

    async def body(run: AgentRun) -> int:
        await run.step("f", asyncio.sleep, 0, kind="llm", on_value=lambda v: places.append(here()))
        return here()

    def here() -> int:
        return threading.get_ident()

    for strategy in STRATEGIES.values():
        attempts = Attempts(body, strategy)
        for _ in range(2):
            del places[:]
            assert [attempts.go()[0]] == places


def test_a_hook_gets_a_value_of_its_own() -> None:
    def body(run: AgentRun) -> Any:
        return run.step("f", lambda: {"a": [1]}, on_value=lambda v: v["a"].clear())

    attempts = Attempts(body)
    assert [attempts.go()[0], attempts.go()[0]] == [{"a": [1]}, {"a": [1]}]


def test_hooks_of_parallel_calls_do_not_run_at_the_same_time() -> None:
    def body(run: AgentRun) -> int:
        run.state["n"] = 0

        def add(value: int) -> None:
            before = run.state["n"]
            for _ in range(200):
                len(str(before))
            run.state["n"] = before + value

        with ThreadPoolExecutor(8) as threads:
            calls = [
                threads.submit(run.step, "f", int, "1", key=str(n), kind="tool", on_value=add)
                for n in range(40)
            ]
            for call in calls:
                call.result()
        return run.state["n"]

    attempts = Attempts(body, EveryN(1))
    assert [attempts.go()[0], attempts.go()[0]] == [40, 40]


def test_a_hook_inside_a_call_is_refused() -> None:
    def body(run: AgentRun) -> None:
        run.step("outer", lambda: run.step("inner", str, on_value=print))

    with pytest.raises(RunMisused, match="inside a step"):
        Attempts(body).go()


def test_a_conversation_that_follows_a_framework_costs_one_append_a_call() -> None:
    def body(run: AgentRun) -> int:
        history: list[Message] = []
        for n in range(20):
            history.append(Message.user(f"question {n}"))

            def follow(answer: str) -> None:
                history.append(Message.assistant(answer))
                assert run.conversation.extend_to(history) == 2

            run.step("ask", str, n, key=str(n), kind="llm", on_value=follow)
        return len(run.conversation)

    attempts = Attempts(body, AfterLlmResponse())
    assert attempts.go()[0] == 40
    assert attempts.go()[0] == 40


# -- usage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=3, output_tokens=2),
        Usage.of("m", input_tokens=3, output_tokens=2),
        lambda value: Usage.of("m", input_tokens=value["in"], output_tokens=value["out"]),
        lambda value: Usage(input_tokens=value["in"], output_tokens=value["out"], cost=0.5),
    ],
    ids=["plain", "of a model", "a function", "with a cost"],
)
def test_the_usage_of_a_step_is_paid_once_and_seen_in_every_attempt(usage: Any) -> None:
    def body(run: AgentRun) -> int:
        run.step("ask", lambda: {"in": 3, "out": 2}, kind="llm", usage=usage)
        return run.usage.tokens

    class Paying(Host):
        def record(self, step: Any, paid: Usage, call: Any) -> None:
            payments.append(paid.tokens)
            super().record(step, paid, call)

    payments: list[int] = []
    attempts = Attempts(body, EITHER)
    for _ in range(2):
        run = attempts.attempt()
        run._host.__class__ = Paying
        assert attempts.go(run)[0] == 5
    assert payments == [5]
    killed_everywhere(body, EITHER)


@pytest.mark.parametrize("usage", [lambda value: None, Usage()], ids=["None", "empty"])
def test_a_step_may_have_used_nothing(usage: Any) -> None:
    attempts = Attempts(lambda run: run.step("ask", str, usage=usage))
    _, run = attempts.go()
    assert not run.usage


@pytest.mark.parametrize(
    "usage",
    [lambda value: value["missing"], lambda value: 3, lambda value: Usage(input_tokens=-1)],
    ids=["raises", "no usage", "negative"],
)
def test_a_usage_that_cannot_be_computed_does_not_lose_the_result(usage: Any) -> None:
    attempts = Attempts(lambda run: run.step("ask", dict, usage=usage))
    assert attempts.go()[0] == {}
    assert len(attempts.host.costs_failed) == 1


def test_a_reported_usage_is_added_to_that_of_the_step() -> None:
    def body(run: AgentRun) -> dict[str, int]:
        def ask() -> str:
            run.report(output_tokens=1)
            return "x"

        run.step("ask", ask, usage=Usage.of("m", input_tokens=2))
        return {model: used.tokens for model, used in run.usage.by_model.items()}

    assert Attempts(body).go()[0] == {"m": 3}


# -- the keywords and the parameters of the function -------------------------------------------------


def takes_all(
    key: str, kind: str = "", usage: int = 0, *, on_value: str = "", name: str = ""
) -> list[Any]:
    return [key, kind, usage, on_value, name]


def test_a_function_gets_parameters_of_the_same_names_by_position_or_bound() -> None:
    def body(run: AgentRun) -> list[Any]:
        bound = functools.partial(takes_all, usage=3, on_value="v")
        return [
            run.step("by position", takes_all, "k", "x", 1),
            run.step("both", takes_all, "k", "x", 1, key="1", kind="tool", usage=Usage()),
            run.step("bound", bound, "k", "x", key="2", usage=Usage(), on_value=lambda v: None),
            run.step("its own names", lambda name, fn, args: [name, fn, args], name=1, fn=2, args=3),
        ]

    attempts = Attempts(body)
    result = attempts.go()[0]
    assert result == [
        ["k", "x", 1, "", ""],
        ["k", "x", 1, "", ""],
        ["k", "x", 3, "v", ""],
        [1, 2, 3],
    ]
    assert attempts.go()[0] == result
    assert attempts.host.changes == []


@pytest.mark.parametrize("name", ["key", "kind", "usage", "on_value", "returns"])
def test_a_keyword_that_could_be_meant_for_the_function_is_refused(name: str) -> None:
    value = {"key": "k", "kind": "tool", "usage": Usage(), "on_value": print, "returns": int}[name]
    space: dict[str, Any] = {}
    exec(f"def function({name}=None): raise AssertionError", space)
    with pytest.raises(RunMisused, match=rf"functools\.partial\(fn, {name}=\.\.\.\)"):
        Attempts(lambda run: run.step("f", space["function"], **{name: value})).go()


def test_what_is_bound_is_an_argument() -> None:
    bound = [1]

    def body(run: AgentRun) -> int:
        return run.step("f", functools.partial(lambda n, key: n + key, key=bound[0]), 10)

    attempts = Attempts(body)
    assert attempts.go()[0] == 11
    bound[0] = 2
    assert attempts.go()[0] == 12
    assert attempts.host.changes == ["f"]


async def awaits(value: Any) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": 3},
        {"kind": "model"},
        {"on_value": awaits},
        {"on_value": 3},
        {"usage": 3},
        {"usage": {"input_tokens": 3}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_wrong_keyword_is_refused_before_anything_is_called(options: dict[str, Any]) -> None:
    called: list[int] = []
    with pytest.raises(RunMisused, match=r"run\.step: "):
        Attempts(lambda run: run.step("f", lambda: called.append(1), **options)).go()
    assert called == []
