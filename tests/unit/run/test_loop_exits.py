"""After the loop: a resumed run rebuilds what the last iteration bound, or reports why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_ckpt import AgentRun, CheckpointEvent, EveryN, Message, Never
from celery_ckpt.run.control_flow import HandOff
from tests.support.run_host import Attempts, chat_reply

ITERATION = CheckpointEvent.ITERATION
Body = Callable[[AgentRun], Any]


class Model:
    """Counts its calls, outside the store."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask(self, number: int) -> dict[str, Any]:
        self.asked.append(number)
        return chat_reply(f"answer {number}")


def ends_the_same(make: Callable[[Model], Body], strategy: Any) -> None:
    """Assert that the body, killed at every write, ends the same and repeats at most one call."""
    model = Model()
    attempts = Attempts(make(model), strategy)
    result, run = attempts.go()
    expected = result, run.state, run.conversation.to_dict(), run.iteration
    asked, writes = len(model.asked), attempts.host.writes
    for place in range(2 * writes):
        model = Model()
        attempts = Attempts(make(model), strategy)
        assert attempts.killed(place)
        result, run = attempts.go()
        assert (result, run.state, run.conversation.to_dict(), run.iteration) == expected, place
        assert len(model.asked) <= asked + 1, place


def at_the_limit(model: Model) -> Body:
    def body(run: AgentRun) -> str:
        for iteration in run.iterations(limit=4):
            run.state["iterations"] = run.state.get("iterations", 0) + 1
            reply = run.llm(model.ask, iteration)
        run.state["after"] = run.state.get("after", 0) + 1
        closing = run.llm(model.ask, 99)
        return f"{reply.text}, {closing.text}"

    return body


def left_by_break(model: Model) -> Body:
    def body(run: AgentRun) -> str:
        for iteration in run.iterations():
            run.state["iterations"] = run.state.get("iterations", 0) + 1
            reply = run.llm(model.ask, iteration)
            if iteration == 3:
                break
        run.state["after"] = run.state.get("after", 0) + 1
        run.checkpoint(note="left")
        closing = run.llm(model.ask, 99)
        return f"{reply.text}, {closing.text}"

    return body


def left_with_own_messages(model: Model) -> Body:
    def body(run: AgentRun) -> int:
        for iteration in run.iterations(limit=9):
            if len(run.conversation) == 2 * (iteration - 1):
                run.conversation.append(Message.user(str(iteration)))
            run.llm(model.ask, iteration)
            if iteration == 3:
                break
        run.checkpoint()
        run.state["after"] = "an exact checkpoint repeats this"
        run.llm(model.ask, 99)
        return len(run.conversation)

    return body


def saving_in_the_loop(model: Model) -> Body:
    def body(run: AgentRun) -> int:
        for iteration in run.iterations(limit=3):
            run.state["n"] = run.state.get("n", 0) + 1
            run.checkpoint()
            run.llm(model.ask, iteration)
            run.checkpoint()
        return int(run.state["n"])

    return body


@pytest.mark.parametrize("strategy", [Never(), EveryN(1), EveryN(3)], ids=str)
@pytest.mark.parametrize(
    "make", [at_the_limit, left_by_break, left_with_own_messages, saving_in_the_loop]
)
def test_a_body_killed_at_any_point_ends_the_same(make: Callable[[Model], Body], strategy: Any) -> None:
    ends_the_same(make, strategy)


def test_a_checkpoint_after_manual_messages_and_a_break_resumes_after_the_loop() -> None:
    iterations: list[int] = []

    def body(run: AgentRun) -> None:
        for iteration in run.iterations(limit=9):
            iterations.append(iteration)
            run.conversation.append(Message.user(str(iteration)))
            run.state["n"] = run.state.get("n", 0) + 1
            if iteration == 2:
                break
        run.state["after"] = run.state.get("after", 0) + 1
        run.checkpoint()
        run.step("more", lambda: 1)

    attempts = Attempts(body)
    assert attempts.killed(2), "when the step after the checkpoint is recorded"
    latest = attempts.latest
    assert (latest.iteration, latest.after_loop, latest.entry) == (2, True, None)
    _, run = attempts.go()
    assert iterations == [1, 2]
    assert run.state["n"] == 2


def test_the_end_of_the_last_iteration_is_emitted_once() -> None:
    attempts = Attempts(at_the_limit(Model()), EveryN(1))
    whole = len(attempts.go()[1].conversation)
    for place in range(100):
        attempts = Attempts(at_the_limit(Model()), EveryN(1))
        attempts.killed(place)
        latest = attempts.store.load_latest("a")
        if latest is not None and (latest.iteration, latest.event) == (4, ITERATION):
            break
    attempts.go()
    assert len(attempts.latest.conversation) == whole
    assert (4, ITERATION) not in attempts.host.events


def test_a_run_is_not_handed_off_after_its_last_iteration() -> None:
    attempts = Attempts(at_the_limit(Model()), Never())
    for stop in (1, 2, 3):
        run = attempts.attempt()
        attempts.host.stop_after_iteration = stop
        with pytest.raises(HandOff):
            attempts.go(run)
    run = attempts.attempt()
    attempts.host.stop_after_iteration = 4
    assert attempts.go(run)[0] == "answer 4, answer 99"


def test_an_exception_that_propagates_out_of_the_body_does_not_leave_the_loop() -> None:
    def body(run: AgentRun) -> None:
        for iteration in run.iterations(limit=3):
            run.step("work", str, iteration)

    attempts = Attempts(body)
    run = attempts.attempt()
    attempts.host.stop_at_check = 3
    with pytest.raises(HandOff):
        attempts.go(run)
    assert not attempts.latest.after_loop
    assert attempts.latest.iteration == 2


def unbound(run: AgentRun) -> Any:
    for iteration in run.iterations(limit=2):
        reply = iteration
        run.emit(CheckpointEvent.LLM_RESPONSE)
    run.checkpoint()
    run.step("more", lambda: 1)
    return reply


def test_an_unbound_variable_of_a_body_resumed_after_its_loop_is_explained() -> None:
    attempts = Attempts(unbound)
    run = attempts.attempt()
    attempts.host.stop_at_check = 4
    with pytest.raises(HandOff):
        attempts.go(run)
    run = attempts.attempt()
    with pytest.raises(UnboundLocalError) as caught:
        attempts.go(run)
    run.explain(caught.value)
    assert "run.state" in caught.value.__notes__[0]


def test_an_unbound_variable_of_a_body_that_was_not_resumed_is_not_explained() -> None:
    run = Attempts(unbound).attempt()
    error = UnboundLocalError()
    run.explain(error)
    assert not hasattr(error, "__notes__")
