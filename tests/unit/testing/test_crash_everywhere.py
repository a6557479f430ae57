"""``crash_everywhere`` on correct and on incorrect agents."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore, SoftTimeLimitExceeded

from celery_ckpt import AfterLlmResponse, AfterToolCall, AgentRun, EveryN, Message, Never, agent_task
from celery_ckpt.errors import LeaseLost, StoreError, StoreUnavailable
from celery_ckpt.runtime.attempt import attempt
from celery_ckpt.stores.memory import MemoryCheckpointStore
from celery_ckpt.testing import crash_everywhere

CALLS: Counter[str] = Counter()
app = Celery("crashing", set_as_current=False)
app.conf.ckpt_store_url = "memory://"
LEASE_LOST = LeaseLost(agent_id="a", token=1)
UNAVAILABLE = StoreUnavailable(where="there", reason="unavailable")
STRATEGIES = (AfterToolCall(), AfterLlmResponse(), EveryN(1), EveryN(2), Never())
#: The same code saves an async body, so the extremes are enough.
CASES = [("sync", one) for one in STRATEGIES] + [("async", EveryN(1)), ("async", Never())]


def model(run: AgentRun) -> dict[str, Any]:
    CALLS[f"llm {run.iteration}"] += 1
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": f'{{"n": {n}}}'}}
        for n in range(3)
    ]
    return {"role": "assistant", "content": f"iteration {run.iteration}", "tool_calls": calls}


def tool(n: int) -> dict[str, int]:
    return {"square": n * n}


def begin(run: AgentRun) -> None:
    if not run.resumed:
        run.conversation.append(Message.user("go"))


def end_iteration(run: AgentRun, results: list[dict[str, int]]) -> None:
    run.state["sum"] = run.state.get("sum", 0) + sum(result["square"] for result in results)
    if run.iteration == 2:  # a compaction
        kept = run.conversation.messages
        run.conversation.replace([kept[0], Message.user("in short: so far, so good"), *kept[-4:]])


@agent_task(app=app)
def sync_agent(run: AgentRun, count: int) -> list[Any]:
    begin(run)
    seed = run.step("seed", lambda: 7)
    for _ in run.iterations(limit=count):
        reply = run.llm(model, run)
        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(lambda call: run.tool(call, tool), reply.tool_calls))
        end_iteration(run, results)
    last = run.step("after", lambda total: total + seed, run.state["sum"])
    return [last, len(run.conversation)]


@agent_task(app=app)
async def async_agent(run: AgentRun, count: int) -> list[Any]:
    begin(run)
    seed = await run.step("seed", lambda: 7)
    async for _ in run.iterations(limit=count):
        reply = await run.llm(model, run)
        results = await asyncio.gather(*(run.tool(call, tool) for call in reply.tool_calls))
        end_iteration(run, results)
    last = await run.step("after", lambda total: total + seed, run.state["sum"])
    return [last, len(run.conversation)]


@pytest.mark.parametrize(("kind", "strategy"), CASES, ids=repr)
def test_an_agent_killed_at_any_write_ends_the_same(kind, strategy, monkeypatch) -> None:
    task = {"sync": sync_agent, "async": async_agent}[kind]
    monkeypatch.setattr(type(task._get_current_object()), "strategy", strategy)
    # Twice as many places take four times as long: a third iteration, after the compaction, only for
    # one strategy.
    count = 3 if strategy == EveryN(1) else 2

    report = crash_everywhere(task, (count,))

    assert report.result == [5 * count + 7, 6 + 4 * (count - 2)]
    # A step before the loop, four in each iteration, one after it, and the start and the end.
    assert report.writes >= 1 + count * 4 + 1 + 2
    assert report.kills == 2 * report.writes


@agent_task(app=app, strategy=EveryN(1))
def forgetful(run: AgentRun) -> int:
    """Accumulate in a variable instead of in the state."""
    total = 0
    for iteration in run.iterations(limit=3):
        total += run.step("count", int, iteration)
    return total


def test_an_agent_that_keeps_its_state_elsewhere_is_detected() -> None:
    with pytest.raises(AssertionError) as caught:
        crash_everywhere(forgetful)
    assert str(caught.value) == (
        "killed just after write 3 (checkpoint, iteration 1), the result is 5 instead of 6"
    )


@agent_task(app=app, strategy=EveryN(1))
def noting(run: AgentRun) -> None:
    """Add one value to the metadata of one checkpoint, and another to all later ones."""
    for iteration in run.iterations(limit=3):
        run.metadata["iterations"] = str(int(run.metadata.get("iterations", 0)) + (iteration != 2))
        run.step("count", int, iteration)
        if iteration == 2:
            run.checkpoint(note="half way", count="many", pin="before-deploy")


def test_metadata_of_one_checkpoint_is_not_in_later_ones() -> None:
    assert crash_everywhere(noting).kills > 10


@agent_task(app=app, strategy=EveryN(1))
def boasting(run: AgentRun) -> None:
    run.metadata["attempts"] = str(run.attempt)
    run.step("count", int, 1)


def test_an_agent_whose_metadata_depends_on_its_attempts_is_detected() -> None:
    with pytest.raises(AssertionError, match=r"the metadata is \{'attempts': '2'\} instead of"):
        crash_everywhere(boasting)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop steps early, so that an agent with few iterations is enough."""
    monkeypatch.setattr(attempt, "_DROP_STEPS_EVERY", 6)


def counted(n: int) -> int:
    CALLS[f"step {n}"] += 1
    return n


@agent_task(app=app, strategy=AfterLlmResponse())
def long(run: AgentRun, count: int) -> int:
    """Run long enough that early steps are dropped in the middle of an iteration."""
    seed = run.step("seed", counted, 0)
    for iteration in run.iterations(limit=count):
        number = run.step("count", counted, iteration)
        run.llm(model, run)
        run.state["sum"] = run.state.get("sum", seed) + number
    return run.state["sum"]


@pytest.mark.usefixtures("soon")
def test_an_agent_whose_first_steps_are_dropped_while_it_runs_ends_the_same() -> None:
    CALLS.clear()

    report = crash_everywhere(long, (8,))

    assert report.result == sum(range(9))
    # Two steps and a checkpoint in each iteration, the step before them, the start and the end, and
    # one write that drops steps.
    assert report.writes == 3 * 8 + 3 + 1
    # No step was dropped that is still needed: each call is made once in each simulated run, and once
    # more in the run that was killed before the call was recorded.
    assert set(CALLS.values()) == {1 + report.kills + report.hand_offs + 1}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("error", "outcome"), [(LEASE_LOST, Ignore), (UNAVAILABLE, None)], ids=["lost", "unavailable"]
)
def test_dropping_steps_never_raises_in_the_body(error: StoreError, outcome: Any, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(MemoryCheckpointStore, "drop_steps", refuse)

    with pytest.raises(outcome) if outcome else nullcontext():
        assert crash_everywhere(long, (8,)).result == sum(range(9))


def test_an_agent_without_checkpoints_is_not_handed_off_after_some_iterations(monkeypatch) -> None:
    """It would start over each time, and never end."""
    monkeypatch.setitem(app.conf, "ckpt_iterations_per_task", 1)
    monkeypatch.setattr(sync_agent, "strategy", Never())
    assert crash_everywhere(sync_agent, (2,)).result == [17, 6]


# -- what the report says --------------------------------------------------------------------------


@agent_task(app=app, strategy=EveryN(1))
async def grouping(run: AgentRun) -> int:
    """Call in a task group, which wraps the exception that kills it."""
    async for _ in run.iterations(limit=2):
        reply = await run.llm(model, run)
        async with asyncio.TaskGroup() as group:
            for call in reply.tool_calls:
                group.create_task(run.tool(call, tool))
    return len(run.conversation)


@pytest.mark.parametrize(("task", "args"), [(sync_agent, (2,)), (async_agent, (2,)), (grouping, ())])
def test_kills_and_hand_offs_are_not_logged(task, args, caplog) -> None:
    report = crash_everywhere(task, args)

    assert report.kills == 2 * report.writes
    assert report.hand_offs >= report.calls
    # Signal receivers of other tests in this process may log anything.
    own = [record for record in caplog.records if record.name.startswith("celery_ckpt")]
    assert [record.getMessage() for record in own if record.levelname != "INFO"] == []


@agent_task(app=app, strategy=EveryN(1))
def unlucky(run: AgentRun) -> str:
    """Use a variable that only the first attempt has."""
    if not run.resumed:
        reply = run.llm(model, run)
    for _ in run.iterations(limit=2):
        run.step("count", int, 1)
    return reply.text


def test_an_error_of_the_body_names_the_kill() -> None:
    with pytest.raises(UnboundLocalError) as caught:
        crash_everywhere(unlucky)
    # A reply before the loop is replayed until the loop has begun.
    assert caught.value.__notes__ == [
        "crash_everywhere: killed just after write 5 (checkpoint, iteration 1)"
    ]


@agent_task(app=app, strategy=EveryN(1000))
def forgetful_when_handed_off(run: AgentRun, is_strict: bool) -> int:
    """Start over and count from the beginning after a kill, but not after a hand-off."""
    total = 0
    for iteration in run.iterations(limit=3):
        total += run.step("count", int, iteration)
    if is_strict and total != 6:
        raise ValueError(total)
    return total


def test_an_end_that_differs_after_a_hand_off_is_detected() -> None:
    with pytest.raises(AssertionError) as caught:
        crash_everywhere(forgetful_when_handed_off, (False,))
    assert str(caught.value) == "handed off after iteration 1, the result is 5 instead of 6"


def test_an_error_of_the_body_names_the_hand_off() -> None:
    with pytest.raises(ValueError, match="5") as caught:
        crash_everywhere(forgetful_when_handed_off, (True,))
    assert caught.value.__notes__ == ["crash_everywhere: handed off after iteration 1"]


def test_hand_offs_can_be_turned_off() -> None:
    report = crash_everywhere(forgetful_when_handed_off, (True,), hand_offs=False)
    assert (report.result, report.hand_offs) == (6, 0)
    assert report.kills == 2 * report.writes


@agent_task(app=app, strategy=EveryN(1000))
def reporting_where_it_resumes(run: AgentRun) -> int:
    begun_in = run.iteration
    for _ in run.iterations(limit=1):
        run.step("count", int, 1)
        run.step("count", int, 2)
    return begun_in


def test_a_hand_off_before_a_call_is_named_by_the_write_before_it() -> None:
    with pytest.raises(AssertionError) as caught:
        crash_everywhere(reporting_where_it_resumes)
    assert str(caught.value) == (
        "handed off in iteration 1, after write 1 (start of an attempt), the result is 1 instead of 0"
    )


@agent_task(app=app, strategy=EveryN(1))
def failing(run: AgentRun) -> None:
    raise ValueError("always")


def test_an_error_of_the_uninterrupted_run_has_no_note() -> None:
    with pytest.raises(ValueError, match="always") as caught:
        crash_everywhere(failing)
    assert not hasattr(caught.value, "__notes__")


@agent_task(app=app, strategy=Never())
def restless(run: AgentRun) -> int:
    """Ask something different in every attempt."""
    run.step("look", counted, run.attempt)
    run.step("count", counted, 7)
    return 1


def test_a_repeated_recorded_call_is_named() -> None:
    with pytest.raises(AssertionError) as caught:
        crash_everywhere(restless)
    assert str(caught.value) == (
        "killed just after write 2 (record of look, before the first iteration), "
        "the recorded call 'look' (before the first iteration) was made again"
    )


@agent_task(app=app)
def fickle(run: AgentRun) -> int:
    CALLS["fickle"] += 1
    return CALLS["fickle"]


def test_an_agent_that_ends_differently_each_time_is_detected() -> None:
    with pytest.raises(
        AssertionError, match=r"\(start of an attempt\), before the body began, the result"
    ):
        crash_everywhere(fickle)


@agent_task(app=app, strategy=EveryN(1))
def stamping(run: AgentRun) -> list[Any]:
    run.state["attempt"] = run.attempt
    return [run.step("count", int, 1), run.attempt]


def test_values_that_always_differ_can_be_excluded() -> None:
    with pytest.raises(AssertionError, match="the state is"):
        crash_everywhere(stamping)
    assert crash_everywhere(stamping, same=lambda end: end["result"][0]).result == [1, 1]
    with pytest.raises(
        AssertionError, match=r"^killed just after write 1 .*, the end is 2 instead of 1$"
    ):
        crash_everywhere(stamping, same=lambda end: end["result"][1])


@agent_task(app=app, strategy=EveryN(1))
def emptying(run: AgentRun, questions: list[str]) -> int:
    for _ in run.iterations(limit=2):
        run.step("ask", str, questions.pop(0) if questions else "nothing left")
    return len(questions)


def test_every_attempt_gets_the_original_arguments() -> None:
    questions = ["a", "b"]
    with pytest.raises(AssertionError, match="the result is 1 instead of 0"):
        crash_everywhere(emptying, (questions,))
    assert questions == ["a", "b"]


@pytest.mark.parametrize("task", [sync_agent, async_agent])
def test_an_agent_that_hands_itself_off_after_some_iterations_ends_the_same(task, monkeypatch) -> None:
    monkeypatch.setattr(task._get_current_object(), "iterations_per_task", 1)
    monkeypatch.setattr(type(task._get_current_object()), "strategy", EveryN(2))
    report = crash_everywhere(task, (2,))
    assert report.result == [17, 6]
    assert report.kills == 2 * report.writes


@agent_task(app=Celery("slow", set_as_current=False))
def too_slow(run: AgentRun) -> None:
    raise SoftTimeLimitExceeded


def test_a_run_that_is_handed_off_without_end_is_detected() -> None:
    too_slow.app.conf.update(ckpt_store_url="memory://", ckpt_hand_off_on_time_limit=True)
    with pytest.raises(AssertionError, match="handed off again and again at iteration 0"):
        crash_everywhere(too_slow)


@agent_task(app=app, on_changed="fail")
def nested(run: AgentRun) -> list[int]:
    def outer(n: int) -> int:
        return run.step("inner", lambda x: x + 1, n)

    return [run.step("outer", outer, n) for n in range(3)]


@agent_task(app=app, on_changed="fail")
async def late(run: AgentRun) -> list[int]:
    async def tool(n: int) -> int:
        await asyncio.sleep(0.005 * (3 - n))
        return n

    async def one(n: int) -> int:
        for _ in range(n * 3):  # like the tasks of a framework between the siblings
            await asyncio.sleep(0)
        return await run.step("tool", tool, n)

    return list(await asyncio.gather(*(one(n) for n in range(3))))


@pytest.mark.parametrize("task", [nested, late])
def test_an_agent_that_fails_on_changes_succeeds_if_nothing_has_changed(task: Any) -> None:
    assert crash_everywhere(task).kills > 0
