"""Bodies that emit, save, append and count manually: their checkpoints are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_ckpt import AfterToolCall, AgentRun, Checkpoint, CheckpointEvent, EveryN, Message, Never
from celery_ckpt.errors import RunMisused
from celery_ckpt.run.control_flow import HandOff
from tests.support.provider_agents import World, calls_of, compact
from tests.support.run_host import Attempts, chat_reply

ITERATION = CheckpointEvent.ITERATION


def checkpointing(world: World) -> Callable[[AgentRun], Any]:
    """Work with the helpers, and save manually before the loop, in it and after it."""

    def body(run: AgentRun) -> Any:
        if not run.resumed:
            run.conversation.append(Message.user("why?"))
            run.checkpoint(note="asked")
        run.llm(world.model, run.conversation, 99)
        for iteration in run.iterations(limit=3):
            reply = run.llm(world.model, run.conversation, iteration)
            run.checkpoint(note="answered")
            for call in calls_of(reply):
                run.tool(call, world.tool)
                run.checkpoint()
            run.llm(world.model, run.conversation, iteration + 200)
        run.llm(world.model, run.conversation, 300)
        run.checkpoint()
        return run.iteration

    return body


def counting(world: World) -> Callable[[AgentRun], Any]:
    """Work without ``run.iterations``, with equal arguments for the step of each iteration."""

    def body(run: AgentRun) -> Any:
        while run.iteration < 4:
            seen = run.step("look", world.look, 0, "x")
            if len(run.conversation) == run.iteration:
                run.conversation.append(Message.user(f"{run.iteration} {seen}"))
            run.step("look", world.look, 0, "y")
            run.emit(ITERATION)
        return run.iteration

    return body


def compacting(world: World) -> Callable[[AgentRun], Any]:
    """Save manually, and compact where a resumed run still has the earlier messages: at the
    beginning.
    """

    def body(run: AgentRun) -> Any:
        if not run.resumed:
            run.conversation.append(Message.user("why?"))
        for iteration in run.iterations(limit=3):
            if run.state.get("compacted") != iteration:
                compact(run)
                run.state["compacted"] = iteration
            for call in calls_of(run.llm(world.model, run.conversation, iteration)):
                run.tool(call, world.tool)
            run.checkpoint()
            run.llm(world.model, run.conversation, iteration + 200)
        return run.iteration

    return body


BODIES = {"checkpointing": checkpointing, "counting": counting, "compacting": compacting}
STRATEGIES = {"never": Never(), "tools": AfterToolCall(), "every": EveryN(1), "second": EveryN(2)}


def tried(body: str, strategy: str) -> Attempts:
    world = World("chat")
    attempts = Attempts(BODIES[body](world), STRATEGIES[strategy])
    record = attempts.store.record_step

    def noting(step: Any, lease: Any = None, **paid: Any) -> None:
        record(step, lease, **paid)
        world.note(step)

    attempts.store.record_step = noting  # type: ignore[method-assign]
    return attempts


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("body", BODIES)
def test_a_manual_body_killed_once_or_twice_at_any_point_ends_the_same(
    body: str, strategy: str
) -> None:
    attempts = tried(body, strategy)
    result, run = attempts.go()
    expected = result, run.conversation.to_dict()
    for place in range(2 * attempts.host.writes):
        # Once and, at every second point, twice.
        for again in ([], [1])[: 1 + place % 2]:
            attempts = tried(body, strategy)
            assert attempts.killed(place)
            for second in again:
                attempts.killed(second)
            result, run = attempts.go()
            assert (result, run.conversation.to_dict()) == expected, (place, again)
            assert attempts.host.changes == []


def exact(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint.iteration, checkpoint.event, checkpoint.entry, len(checkpoint.conversation)


def test_manual_messages_and_a_checkpoint_make_the_checkpoints_of_the_iteration_exact() -> None:
    run = Attempts(lambda run: None).attempt()
    for iteration in run.iterations(limit=2):
        assert not run.is_manual
        assert run.snapshot().entry is not None
        run.conversation.append(Message.user("own"))
        run.checkpoint()
        run.llm(lambda: chat_reply("x"))
        assert run.is_manual
        assert exact(run.snapshot()) == (iteration, None, None, 2 * iteration)


def test_a_checkpoint_keeps_the_entry_if_only_run_methods_have_appended_messages() -> None:
    run = Attempts(lambda run: None).attempt()
    for iteration in run.iterations(limit=2):
        run.llm(lambda: chat_reply("x"))
        run.state["n"] = iteration
        made = run.checkpoint()
        assert not run.is_manual
        assert made.entry is not None
        assert (len(made.entry.conversation), made.entry.state.get("n", 0)) == (iteration - 1,) * 2
        assert (len(made.conversation), made.state["n"]) == (iteration, iteration)


def test_replacing_the_conversation_counts_as_a_manual_change() -> None:
    run = Attempts(lambda run: None).attempt()
    for _ in run.iterations(limit=1):
        run.conversation = run.conversation.with_system_prompt("be brief")
        assert run.checkpoint().entry is None


def test_a_manual_event_makes_the_checkpoints_exact() -> None:
    run = Attempts(lambda run: None).attempt()
    run.emit(CheckpointEvent.LLM_RESPONSE)
    assert exact(run.snapshot(CheckpointEvent.LLM_RESPONSE)) == (0, "llm_response", None, 0)


def test_a_tool_result_for_a_manual_message_makes_the_checkpoints_exact() -> None:
    run = Attempts(lambda run: None).attempt()
    for _ in run.iterations(limit=1):
        run.tool(run.llm(lambda: chat_reply(None, ("mine", "f", "{}"))).tool_calls[0], lambda: 1)
        assert not run.is_manual
        run.conversation.append(chat_reply(None, ("c", "f", "{}")))
        [call] = run.conversation.pending_tool_calls()
        run.tool(call, lambda: 1)
        assert run.is_manual


def test_a_manual_body_is_stopped_only_where_it_emits_or_saves() -> None:
    attempts = Attempts(lambda run: None)
    run = attempts.attempt()
    for _ in run.iterations(limit=1):
        run.step("a", lambda: 1)
        assert attempts.host.checks == 1
        run.conversation.append(Message.user("own"))
        run.checkpoint()
        assert attempts.host.checks == 2
        run.step("b", lambda: 1)
        run.llm(lambda: chat_reply("x"))
        assert attempts.host.checks == 2
        run.emit(CheckpointEvent.LLM_RESPONSE)
        assert attempts.host.checks == 3
    # Here a loop that ends looks like a hand-off: no replay could rebuild its variables.
    assert attempts.host.checks == 3


def test_without_a_loop_iterations_are_counted_by_events() -> None:
    def body(run: AgentRun) -> int:
        while run.iteration < 5:
            run.conversation.append(Message.user(str(run.iteration)))
            run.emit(ITERATION)
        return run.iteration

    attempts = Attempts(body, EveryN(2))
    assert attempts.killed(4)
    assert exact(attempts.latest) == (2, ITERATION, None, 2)
    result, run = attempts.go()
    assert result == 5
    assert [message.text for message in run.conversation] == list("01234")
    assert attempts.host.events == [(n, ITERATION) for n in (3, 4, 5)]


def polling(saves: bool) -> Attempts:
    """Append the model's questions manually: equal ones, with ids that start again in every reply."""

    def poll() -> int:
        return 1 + len(attempts.store.steps("a", "run"))

    def body(run: AgentRun) -> list[str]:
        while len(run.conversation) < 6:
            for call in run.conversation.pending_tool_calls():
                run.tool(call, poll)
            if not len(run.conversation) % 2:
                run.conversation.append(chat_reply(None, ("call_0", "poll", "{}")))
            if saves:
                run.checkpoint()
        return [message.text for message in run.conversation if message.role == "tool"]

    attempts = Attempts(body)
    return attempts


@pytest.mark.parametrize("saves", [False, True])
def test_tool_call_ids_reused_in_manual_messages_are_different_calls(saves: bool) -> None:
    attempts = polling(saves)
    assert attempts.go()[0] == ["1", "2", "3"]
    for place in range(2 * attempts.host.writes):
        attempts = polling(saves)
        assert attempts.killed(place)
        assert attempts.go()[0] == ["1", "2", "3"]
        assert len(attempts.store.steps("a", "run")) == 3


def test_an_id_used_twice_in_one_manual_message_is_two_calls() -> None:
    made: list[int] = []

    def body(run: AgentRun) -> list[int]:
        if not run.resumed:
            run.conversation.append(chat_reply(None, ("x", "f", "{}"), ("x", "f", "{}")))
        calls = run.conversation.messages[0].tool_calls
        return [run.tool(call, lambda: made.append(1) or len(made)) for call in calls]

    attempts = Attempts(body, AfterToolCall())
    assert attempts.go()[0] == attempts.go()[0] == [1, 2]
    assert len(attempts.go()[1].conversation) == 3


def test_before_a_loop_that_was_already_entered_manual_tool_calls_have_their_results() -> None:
    made: list[int] = []

    def body(run: AgentRun) -> list[int]:
        results = []
        for _ in range(2):
            question = Message.of(chat_reply(None, ("call_0", "f", "{}")))
            if not run.resumed:
                run.conversation.append(question)
            results.append(run.tool(question.tool_calls[0], lambda: made.append(1) or len(made)))
        for _ in run.iterations(limit=2):
            run.conversation.replace([Message.user("summary"), *run.conversation.messages[-1:]])
        return results

    attempts = Attempts(body, EveryN(1))
    assert attempts.go()[0] == attempts.go()[0] == [1, 2]


def test_a_manual_tool_call_has_its_result_after_its_message_was_compacted() -> None:
    made: list[int] = []

    def body(run: AgentRun) -> int:
        question = Message.of(chat_reply(None, ("call_0", "f", "{}")))
        if not run.resumed:
            run.conversation.append(question)
        result: int = run.tool(question.tool_calls[0], lambda: made.append(1) or len(made))
        run.conversation.replace([Message.user("summary")])
        run.checkpoint()
        return result

    attempts = Attempts(body, Never())
    assert attempts.go()[0] == attempts.go()[0] == 1


def test_a_run_that_counts_iterations_manually_cannot_use_the_loop() -> None:
    run = Attempts(lambda run: None).attempt()
    run.emit(ITERATION)
    with pytest.raises(RunMisused, match="one of the two"):
        run.iterations()


def test_an_iteration_that_the_body_ends_manually_is_over() -> None:
    iterations: list[int] = []

    def body(run: AgentRun) -> None:
        for iteration in run.iterations(limit=3):
            iterations.append(iteration)
            run.conversation.append(Message.user(str(iteration)))
            run.emit(ITERATION)

    attempts = Attempts(body)
    run = attempts.attempt()
    attempts.host.stop_at_check = 1
    with pytest.raises(HandOff):
        attempts.go(run)
    assert exact(attempts.latest) == (1, ITERATION, None, 1)
    attempts.go()
    assert iterations == [1, 2, 3]


def test_a_store_error_does_not_end_an_iteration() -> None:
    run = Attempts(lambda run: None).attempt()

    def broken(run: AgentRun, event: CheckpointEvent) -> None:
        raise OSError

    run._host.emit = broken  # type: ignore[method-assign]
    for _ in run.iterations(limit=1):
        with pytest.raises(OSError, match=r"^$"):
            run.emit(ITERATION)
        assert run.snapshot().event is None
        break


def test_an_async_body_can_save_and_emit_manually() -> None:
    async def body(run: AgentRun) -> int:
        made = await run.checkpoint(note=1)
        await run.emit(ITERATION)
        return len(made.metadata)

    attempts = Attempts(body, EveryN(1))
    assert attempts.go()[0] == 1
    assert attempts.latest.iteration == 1
