"""How an agent task is declared and called: like any Celery task."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, shared_task

from celery_ckpt import AgentRun, AgentTask, EveryN, Message, ToolCall, agent_task, current_run
from celery_ckpt.errors import ConfigurationError, NoCurrentRun, RunMisused
from tests.support.workers.fixtures import current_app_kept


@pytest.fixture
def app() -> Any:
    """An app without a broker, a backend or a store."""
    with current_app_kept():
        app = Celery("declaring", broker="memory://")
        app.set_current()
        yield app
        app.close()


def test_the_decorator_makes_a_task_with_and_without_arguments(app: Celery) -> None:
    @agent_task(app=app, shared=False)
    def plain(run: AgentRun, text: str) -> str:
        """Return the text."""
        return text

    @agent_task(app=app, shared=False, name="mine", strategy="every:2", rate_limit="1/s")
    def with_options(run: AgentRun, text: str) -> str:
        return text

    assert isinstance(plain, AgentTask)
    assert (plain.name, plain.__doc__) == (f"{__name__}.plain", "Return the text.")
    assert app.tasks["mine"] is with_options._get_current_object()
    assert (with_options.strategy, with_options.rate_limit) == (EveryN(2), "1/s")


@pytest.mark.parametrize("base", [Task, object])
def test_a_base_that_is_not_an_agent_task_is_refused(app: Celery, base: type) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"base must be AgentTask or a subclass of it, not .*{base.__name__}"
    ):
        agent_task(app=app, base=base)(lambda run: None)


@pytest.mark.parametrize(
    ("options", "backs_off"),
    [
        ({}, True),
        ({"default_retry_delay": 60}, False),
        ({"retry_kwargs": {"countdown": 60}}, False),
        ({"retry_kwargs": {"max_retries": 2}}, True),
        ({"default_retry_delay": 60, "retry_backoff": 5}, 5),
    ],
)
def test_a_fixed_retry_delay_switches_the_backoff_off(
    app: Celery, options: dict[str, Any], backs_off: bool | int
) -> None:
    @agent_task(app=app, shared=False, name="declared", **options)
    def declared(run: AgentRun) -> None: ...

    assert declared.retry_backoff == backs_off


def test_a_task_without_an_app_is_a_task_of_every_app(app: Celery) -> None:
    @agent_task
    def everywhere(run: AgentRun) -> str:
        return current_run().agent_id

    other = Celery("other", set_as_current=False)

    assert everywhere.name in app.tasks
    assert everywhere.name in other.tasks
    assert other.tasks[everywhere.name].app is other
    assert everywhere.app is app


def test_agents_are_discovered_with_other_tasks(
    app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "discovered_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text(
        "from celery_ckpt import AgentRun, agent_task\n"
        "@agent_task\n"
        "def discovered(run: AgentRun) -> int:\n"
        "    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app.autodiscover_tasks(["discovered_package"])
    app.loader.import_default_modules()
    try:
        assert app.tasks["discovered_package.tasks.discovered"]() == 7
    finally:
        for name in ("discovered_package.tasks", "discovered_package"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"colour": "red"})], ids=str
)
def test_wrong_arguments_are_refused_at_the_call(
    app: Celery, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    @agent_task(app=app, shared=False)
    def one(run: AgentRun, first: int, second: int = 2) -> None: ...

    @agent_task(app=app, shared=False)
    async def two(run: AgentRun, first: int, second: int = 2) -> None: ...

    @app.task(base=AgentTask, bind=True, shared=False)
    def three(self: Any, first: int, second: int = 2) -> None: ...

    @app.task(base=AgentTask, shared=False)
    async def four(first: int, second: int = 2) -> None: ...

    for task in (one, two, three, four):
        with pytest.raises(TypeError, match="argument"):
            task.apply_async(args, kwargs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "evry:3"}, "evry:3"),
        ({"strategy": 3}, "strategy.*3"),
        ({"on_changed": "cal"}, "on_changed must be 'call' or 'fail', not 'cal'"),
        (
            {"pending_calls": "drop"},
            "pending_calls must be one of leave, answer, take_back",
        ),
        ({"iterations_per_task": 0}, "iterations_per_task.*0"),
        ({"iterations_per_task": 2, "strategy": "never"}, "needs checkpoints to continue from"),
        ({"keep": 0}, "keep.*0"),
        ({"max_age": 0}, "max_age must be over 0 seconds.*0"),
        ({"max_age": float("inf")}, "max_age must be over 0 seconds.*inf"),
    ],
)
def test_bad_options_are_refused_where_the_task_is_defined(
    app: Celery, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):

        @agent_task(**options)
        def one(run: AgentRun) -> None: ...

    with pytest.raises(ConfigurationError, match=message):

        @app.task(base=AgentTask, lazy=False, shared=False, **options)
        def two() -> None: ...

    app.finalize()


def test_a_body_that_takes_no_run_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="must take an AgentRun as its first"):

        @agent_task(app=app, shared=False)
        def empty() -> None: ...


def test_a_generator_body_is_refused(app: Celery) -> None:
    def yields(run: AgentRun) -> Iterator[int]:
        yield 1

    async def yields_too(run: AgentRun) -> AsyncIterator[int]:
        yield 1

    for body in (yields, yields_too):
        with pytest.raises(ConfigurationError, match=f"{body.__name__} is a generator"):
            agent_task(body)
        with pytest.raises(ConfigurationError, match=f"{body.__name__} is a generator"):
            app.task(base=AgentTask, lazy=False, shared=False)(body)


def test_a_body_that_is_not_a_function_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="@agent_task expects a function"):
        agent_task("every:3")  # type: ignore[call-overload]


def call_of(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": name, "type": "function", "function": function}]}


def add(x: int) -> int:
    return x + 1


async def async_add(x: int) -> int:
    return x + 1


@agent_task
def whole(run: AgentRun, n: int) -> list[Any]:
    """Use everything that a run has."""
    run.conversation.append(Message.user("go"))
    for number in run.iterations(limit=n):
        reply = run.llm(call_of, f"add {number}", x=number)
        for call in reply.tool_calls:
            run.state["sum"] = run.state.get("sum", 0) + run.tool(call, add)
    run.checkpoint(why="end")
    total = run.step("double", lambda: 2 * run.state["sum"])
    return [total, len(run.conversation), run.iteration, run.attempt, run.resumed]


@agent_task
async def async_whole(run: AgentRun, n: int) -> list[Any]:
    """Use everything that a run has, as a coroutine."""
    run.conversation.append(Message.user("go"))

    async def model(number: int) -> dict[str, Any]:
        return call_of(f"add {number}", x=number)

    async def double() -> int:
        return 2 * int(run.state["sum"])

    async for number in run.iterations(limit=n):
        reply = await run.llm(model, number)
        for call in reply.tool_calls:
            assert isinstance(call, ToolCall)
            run.state["sum"] = run.state.get("sum", 0) + await run.tool(call, async_add)
    await run.checkpoint(why="end")
    total = await run.step("double", double)
    return [total, len(run.conversation), run.iteration, run.attempt, run.resumed]


@pytest.mark.parametrize("task", [whole, async_whole], ids=["sync", "async"])
def test_a_direct_call_needs_neither_broker_nor_store(app: Celery, task: Any) -> None:
    assert task(3) == [18, 7, 3, 1, False]
    with pytest.raises(NoCurrentRun):
        current_run()


def test_the_error_in_a_thread_of_the_body_says_how_to_get_the_run(app: Celery) -> None:
    @agent_task(app=app)
    def threaded(run: AgentRun) -> str:
        with ThreadPoolExecutor() as pool:
            with pytest.raises(NoCurrentRun, match=r"pass run .*contextvars.copy_context\(\).run"):
                pool.submit(current_run).result()
            # The advice in the error works.
            assert pool.submit(copy_context().run, current_run).result() is run
        return "done"

    assert threaded() == "done"


@pytest.mark.parametrize("task", [whole, async_whole], ids=["sync", "async"])
def test_an_eager_call_needs_neither_broker_nor_store(app: Celery, task: Any) -> None:
    app.conf.task_always_eager = True

    assert task.delay(3).get() == [18, 7, 3, 1, False]
    assert task.apply_async((1,), agent_id="named").get() == [4, 3, 1, 1, False]
    assert (task.s(3) | echo.s()).delay().get() == [18, 7, 3, 1, False]
    assert task.apply((3,)).get() == [18, 7, 3, 1, False]


@shared_task
def echo(value: Any) -> Any:
    return value


@agent_task(max_retries=2)
def eager_failure(run: AgentRun, times: int) -> list[Any]:
    if run.attempt <= times:
        raise ValueError("again")
    return [run.agent_id, run.run_id == run.task.request.id, run.attempt]


@agent_task(max_retries=2)
async def async_eager_failure(run: AgentRun, times: int) -> list[Any]:
    if run.attempt <= times:
        raise ValueError("again")
    return [run.agent_id, run.run_id == run.task.request.id, run.attempt]


@pytest.mark.parametrize("task", [eager_failure, async_eager_failure], ids=["sync", "async"])
def test_eager_agents_are_retried_like_eager_tasks(app: Celery, task: Any) -> None:
    app.conf.task_always_eager = True

    assert task.apply_async((2,), agent_id="named").get() == ["named", True, 3]
    with pytest.raises(ValueError, match="again"):
        task.delay(3).get()


def test_a_direct_call_that_fails_raises_its_own_error(app: Celery) -> None:
    with pytest.raises(ValueError, match="again"):
        eager_failure(1)


def test_a_task_can_be_a_class(app: Celery) -> None:
    class Greeting(AgentTask[..., str]):
        name = "greeting"

        def run(self, whom: str) -> str:
            return f"{current_run().step('greet', str.upper, 'hello')} {whom}"

    task = app.register_task(Greeting())

    assert task("you") == "HELLO you"
    assert app.tasks["greeting"].is_agent


def test_permanent_errors_are_not_retried_with_a_dont_autoretry_for_of_the_users_own(
    app: Celery,
) -> None:
    app.conf.task_always_eager = True
    begun: list[int] = []

    @agent_task(app=app, dont_autoretry_for=(KeyError,), max_retries=2)
    def loops_twice(run: AgentRun) -> None:
        begun.append(run.attempt)
        run.iterations()
        run.iterations()

    with pytest.raises(RunMisused):
        loops_twice.delay().get()
    assert begun == [1]
