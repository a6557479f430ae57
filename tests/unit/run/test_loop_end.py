"""How a loop ends: whatever interrupts the run, the code after the loop finds what the loop left.

Every case is interrupted at every point: killed before and after each write, and handed off wherever it
can be. Calls are counted outside the store.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_ckpt import (
    AgentRun,
    CheckpointEvent,
    Conversation,
    EveryN,
    Message,
    agent_task,
)
from celery_ckpt.runtime.attempt import attempt
from celery_ckpt.testing import crash_everywhere
from celery_ckpt.testing.simulation import SimulatedRun
from tests.support.run_host import Attempts, chat_reply

app = Celery("loops", set_as_current=False)
app.conf.ckpt_store_url = "memory://"
CALLS: Counter[str] = Counter()
Body = Callable[..., Any]


# -- what the bodies call --------------------------------------------------------------------------


def think(conversation: Conversation, iteration: int) -> dict[str, Any]:
    """Ask for a tool in every second iteration."""
    CALLS[f"think {iteration}"] += 1
    calls = [("c", "look", f'{{"iteration": {iteration}}}')] if iteration % 2 else []
    return chat_reply(f"thought {iteration} on {len(conversation)}", *calls)


def summarise(conversation: Conversation) -> dict[str, Any]:
    CALLS["summarise"] += 1
    return chat_reply(f"{len(conversation)} in short")


def look(iteration: int) -> str:
    CALLS[f"look {iteration}"] += 1
    return f"seen {iteration}"


def file(what: int) -> int:
    CALLS[f"file {what}"] += 1
    return 10 * what


def begin(run: AgentRun) -> None:
    if not run.resumed:
        run.conversation.append(Message.user("go"))


# -- the bodies ------------------------------------------------------------------------------------


async def last_reply(run: AgentRun, limit: int) -> Any:
    """Use what the last iteration has bound."""
    begin(run)
    async for iteration in run.iterations(limit=limit):
        reply = await run.llm(think, run.conversation, iteration)
    return reply.text


async def continues(run: AgentRun, limit: int) -> Any:
    """Call a model and a function after the loop."""
    begin(run)
    async for iteration in run.iterations(limit=limit):
        reply = await run.llm(think, run.conversation, iteration)
        for call in reply.tool_calls:
            await run.tool(call, look)
    run.state["filed"] = run.state.get("filed", 0) + 1
    summary = await run.llm(summarise, run.conversation)
    filed = await run.step("file", file, iteration)
    run.state["filed"] += filed
    return [reply.text, summary.text, filed, run.iteration]


async def breaks(run: AgentRun, limit: int) -> Any:
    """Leave the loop before the limit, and continue."""
    begin(run)
    async for iteration in run.iterations(limit=limit + 2):
        reply = await run.llm(think, run.conversation, iteration)
        for call in reply.tool_calls:
            await run.tool(call, look)
        if iteration == limit:
            break
    summary = await run.llm(summarise, run.conversation)
    return [reply.text, summary.text, iteration, run.iteration]


async def endless(run: AgentRun, limit: int) -> Any:
    """Have a loop without a limit, and state that accumulates."""
    begin(run)
    async for iteration in run.iterations(limit=None):
        reply = await run.llm(think, run.conversation, iteration)
        run.state["said"] = [*run.state.get("said", []), reply.text]
        for call in reply.tool_calls:
            await run.tool(call, look)
        if iteration == limit:
            break
    run.state["ends"] = run.state.get("ends", 0) + 1
    return [reply.text, len(run.state["said"])]


async def saves(run: AgentRun, limit: int) -> Any:
    """Save manually, in the loop and after it."""
    begin(run)
    async for iteration in run.iterations(limit=limit):
        run.state["iterations"] = run.state.get("iterations", 0) + 1
        reply = await run.llm(think, run.conversation, iteration)
        await run.checkpoint(iteration=iteration)
    run.state["ends"] = run.state.get("ends", 0) + 1
    await run.checkpoint()
    filed = await run.step("file", file, iteration)
    return [reply.text, run.state, filed]


async def changes(run: AgentRun, limit: int) -> Any:
    """Change state and metadata in the loop, and shorten the conversation."""
    begin(run)
    async for iteration in run.iterations(limit=limit):
        reply = await run.llm(think, run.conversation, iteration)
        run.state["sum"] = run.state.get("sum", 0) + await run.step("file", file, iteration)
        run.metadata["iteration"] = str(iteration)
        if iteration % 4 == 0:
            run.conversation.replace(
                [Message.user(f"{iteration} in short"), *run.conversation.messages[-1:]]
            )
    return [reply.text, run.state, run.metadata]


def without_async(body: Body) -> Body:
    """Return the same body as a plain function."""
    source = re.sub(r"\b(async|await) ", "", textwrap.dedent(inspect.getsource(body)))
    names: dict[str, Any] = {}
    exec(compile(source, f"<{body.__name__} without async>", "exec"), globals(), names)
    return names[body.__name__]  # type: ignore[no-any-return]


BODIES = (last_reply, continues, breaks, endless, saves, changes)
KINDS: dict[str, Callable[[Body], Body]] = {"sync": without_async, "async": lambda body: body}
STRATEGIES = ("every:1", "every:5", None)
PER_TASK = (None, 1)
Case = tuple[Body, str, str | None, int, int | None]
_numbers = itertools.count()


def task_of(body: Body, strategy: Any, per_task: int | None = None) -> Any:
    own = {"strategy": strategy, "iterations_per_task": per_task}
    return agent_task(app=app, name=f"{body.__name__}-{next(_numbers)}", **own)(body)


def assert_ends_the_same(case: Case) -> None:
    body, kind, strategy, limit, per_task = case
    task = task_of(KINDS[kind](body), strategy, per_task)
    expected = task(limit)  # called directly: without a store
    CALLS.clear()

    report = crash_everywhere(task, (limit,))

    assert report.result == expected
    assert report.kills == 2 * report.writes
    assert report.hand_offs >= report.calls
    # Each call is made once in each run, and once more in the one run that is killed just before the
    # call is recorded.
    assert set(CALLS.values()) == {1 + report.kills + report.hand_offs + 1}


def cases(*limits: int) -> list[Case]:
    return list(itertools.product(BODIES, KINDS, STRATEGIES, limits, PER_TASK))


def named(case: object) -> str:
    return "-".join(str(getattr(part, "__name__", part)) for part in case)  # type: ignore[attr-defined]


IS_DEEP = bool(os.environ.get("CKPT_DEEP"))
#: Two fifths of the cases, with every kind: no number of kinds is a multiple of five. ``make
#: test-deep`` runs all.
FEW = [case for n, case in enumerate(cases(1, 3, 4)) if IS_DEEP or n % 5 in (0, 2)]
#: These take minutes: steps are dropped after every 16 iterations.
MANY = cases(1, 4, 16, 17) if IS_DEEP else [(last_reply, "sync", "every:1", 17, 1)]


@pytest.mark.parametrize("case", FEW, ids=named)
def test_an_interrupted_loop_ends_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # With 3 and 4 iterations these end where steps are dropped, and just after that.
    monkeypatch.setattr(attempt, "_DROP_STEPS_EVERY", 3)
    assert_ends_the_same(case)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", MANY, ids=named)
def test_an_interrupted_loop_of_many_iterations_ends_the_same(case: Case) -> None:
    assert_ends_the_same(case)


# -- hand-offs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("body", [last_reply, continues, breaks, endless, changes])
def test_a_run_is_not_handed_off_after_its_last_iteration(body: Body, strategy: str | None) -> None:
    life = SimulatedRun(task_of(without_async(body), strategy, per_task=1), (4,), {})
    life.finish()
    [run] = life.store.runs("crash_everywhere")
    assert run.attempts == 4  # handed off after the first three


def test_a_run_of_one_iteration_is_never_handed_off() -> None:
    life = SimulatedRun(task_of(without_async(last_reply), "every:1", per_task=1), (1,), {})
    life.finish()
    [run] = life.store.runs("crash_everywhere")
    assert run.attempts == 1


# -- what is emitted -------------------------------------------------------------------------------


def emitted_ends(tried: Attempts) -> list[int]:
    """Return the iterations whose end the last attempt has emitted."""
    return [n for n, event in tried.host.events if event is CheckpointEvent.ITERATION]


def recorded_ends(tried: Attempts) -> set[int]:
    """Return the iterations whose end a checkpoint contains."""
    outlines = tried.store.list("a")
    return {one.iteration for one in outlines if one.event is CheckpointEvent.ITERATION}


@pytest.mark.parametrize("strategy", [EveryN(1), EveryN(5)])
@pytest.mark.parametrize("body", [last_reply, continues, changes])
def test_the_end_of_an_iteration_is_emitted_again_only_if_it_is_not_recorded(
    body: Body, strategy: EveryN
) -> None:
    plain = without_async(body)
    for place in itertools.count():
        tried = Attempts(lambda run: plain(run, 3), strategy)
        if not tried.killed(place):
            break
        before = emitted_ends(tried)
        recorded = recorded_ends(tried)
        tried.go()
        emitted = emitted_ends(tried)
        assert not recorded & set(emitted)
        assert {*before, *emitted} == {1, 2, 3}
    assert place > 8


# -- the end of the run ----------------------------------------------------------------------------


def counting(run: AgentRun, limit: int) -> int:
    for iteration in run.iterations(limit=limit):
        number = run.step("file", file, iteration)
    return number


@pytest.mark.parametrize("per_task", PER_TASK)
def test_the_end_of_a_run_saves_nothing_that_the_last_checkpoint_contains(per_task: int | None) -> None:
    life = SimulatedRun(task_of(counting, "every:1", per_task), (30,), {})
    assert life.finish() == 300
    life.store.prune("crash_everywhere", keep=3)
    assert [one.iteration for one in life.store.list("crash_everywhere")] == [30, 29, 28]
    [run] = life.store.runs("crash_everywhere")
    assert (run.status, run.result) == ("succeeded", 300)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.conversation.append(Message.user("bye")),
        lambda run: run.state.update(over=True),
        lambda run: run.metadata.update(over="yes"),
    ],
    ids=["conversation", "state", "metadata"],
)
def test_changes_after_the_loop_are_saved_at_the_end(change: Any) -> None:
    def closing(run: AgentRun) -> None:
        counting(run, 2)
        change(run)

    lives = [
        SimulatedRun(task_of(closing, "every:1"), (), {}),
        SimulatedRun(task_of(counting, "every:1"), (2,), {}),
    ]
    for life in lives:
        life.finish()
    changed, unchanged = [{**life.end(), "result": None} for life in lives]
    assert changed != unchanged
    assert crash_everywhere(task_of(closing, "every:1")).kills > 8


# -- state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_manually_saved_counter_counts_each_iteration_once(kind: str, strategy: str | None) -> None:
    async def counter(run: AgentRun) -> Any:
        run.state.setdefault("n", 0)
        async for _ in run.iterations(limit=4):
            run.state["n"] += 1
            await run.checkpoint()
        return run.state["n"]

    task = task_of(KINDS[kind](counter), strategy)
    assert crash_everywhere(task).result == 4


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_after_a_break_resumes_after_the_loop(kind: str, strategy: str | None) -> None:
    async def leaving(run: AgentRun) -> Any:
        async for iteration in run.iterations():
            run.state["iterations"] = run.state.get("iterations", 0) + 1
            await run.step("file", file, iteration)
            if iteration == 2:
                break
        run.state["after"] = run.state.get("after", 0) + 1
        await run.checkpoint()
        run.state["after"] += 10
        await run.checkpoint()
        await run.step("file", file, 9)
        return run.state

    task = task_of(KINDS[kind](leaving), strategy)
    assert crash_everywhere(task).result == {"iterations": 2, "after": 11}


# -- variables that a resume cannot bind -----------------------------------------------------------


def manual(run: AgentRun, limit: int) -> str:
    """Save its own message in the last iteration, which no replay can rebuild."""
    for iteration in run.iterations(limit=limit):
        reply = run.llm(think, run.conversation, iteration)
        if run.conversation.messages[-1].role == "assistant":
            run.conversation.append(Message.user(f"after {iteration}"))
        run.checkpoint()
    run.step("file", file, limit)
    return reply.text


def emitting(run: AgentRun, limit: int) -> str:
    for iteration in run.iterations(limit=limit):
        reply = run.llm(think, run.conversation, iteration)
        run.emit(CheckpointEvent.TOOL_CALL_COMPLETE)
    run.step("file", file, limit)
    return reply.text


@pytest.mark.parametrize("body", [manual, emitting])
def test_a_variable_left_unbound_by_resuming_after_the_loop_is_explained(body: Body) -> None:
    with pytest.raises(UnboundLocalError) as caught:
        crash_everywhere(task_of(body, "every:1"), (2,))
    explanation, where = caught.value.__notes__
    assert "run.iterations()" in explanation
    assert "run.state" in explanation
    assert where.startswith("crash_everywhere: killed just after")


def test_a_variable_left_unbound_by_a_lower_limit_is_explained() -> None:
    limits = iter([5, 2])

    def shrinking(run: AgentRun) -> str:
        for iteration in run.iterations(limit=next(limits)):
            reply = run.llm(think, run.conversation, iteration)
        return reply.text

    life = SimulatedRun(task_of(shrinking, "every:1"), (), {}, stop_at=6)
    with pytest.raises(UnboundLocalError) as caught:
        life.finish()
    assert "limit" in caught.value.__notes__[0]


def test_a_variable_that_was_never_bound_is_not_explained() -> None:
    def forgetting(run: AgentRun) -> str:
        for iteration in run.iterations(limit=0):
            reply = run.llm(think, run.conversation, iteration)
        return reply.text

    with pytest.raises(UnboundLocalError) as caught:
        crash_everywhere(task_of(forgetting, "every:1"))
    assert not hasattr(caught.value, "__notes__")
