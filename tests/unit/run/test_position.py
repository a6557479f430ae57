"""Where a run continues, and what its checkpoints record about that."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ckpt import (
    AgentRun,
    Checkpoint,
    CheckpointEvent,
    Conversation,
    Entry,
    EveryN,
    MemoryCheckpointStore,
    Message,
    Never,
)
from celery_ckpt.errors import RunMisused
from celery_ckpt.run.bridge import SyncBridge
from celery_ckpt.run.control_flow import HandOff
from tests.support.run_host import Attempts, Host

ITERATION, LLM = CheckpointEvent.ITERATION, CheckpointEvent.LLM_RESPONSE
BEGAN = Entry(conversation=Conversation(messages=[Message.user("began")]), state={"n": 0})
BEGAN_AFTER = BEGAN.model_copy(update={"after_loop": True})
INSIDE = Conversation(messages=[Message.user("began"), Message.user("inside")])


def restored(iteration: int, run_id: str = "run", **fields: Any) -> AgentRun:
    latest = Checkpoint.new(
        "a", INSIDE, iteration, run_id=run_id, state={"n": 1}, metadata={"k": "v"}, **fields
    )
    host = Host(MemoryCheckpointStore(), Never())
    return AgentRun("a", "run", 2, host, SyncBridge(), latest, [])


def seen(run: AgentRun) -> tuple[Any, ...]:
    return len(run.conversation), run.state, run.resumed, run.iteration, list(run.iterations(limit=7))


#: The checkpoint, and what the run is restored with: messages, state, resumed, iteration, the loop.
CASES: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "of another run": (
        {"iteration": 4, "run_id": "other", "event": ITERATION},
        (2, {"n": 1}, False, 0, [1, 2, 3, 4, 5, 6, 7]),
    ),
    "of another run, inside an iteration": (
        {"iteration": 4, "run_id": "other", "event": LLM, "entry": BEGAN},
        (2, {"n": 1}, False, 0, [1, 2, 3, 4, 5, 6, 7]),
    ),
    "the end of an iteration": (
        {"iteration": 4, "event": ITERATION},
        (2, {"n": 1}, True, 4, [5, 6, 7]),
    ),
    "inside an iteration": (
        {"iteration": 4, "event": LLM, "entry": BEGAN},
        (1, {"n": 0}, True, 4, [4, 5, 6, 7]),
    ),
    "before the loop": (
        {"iteration": 0, "event": LLM, "entry": BEGAN},
        (1, {"n": 0}, False, 0, [1, 2, 3, 4, 5, 6, 7]),
    ),
    "manually in an iteration": (
        {"iteration": 4, "event": LLM},
        (2, {"n": 1}, True, 4, [4, 5, 6, 7]),
    ),
    "manually in an iteration, without an event": (
        {"iteration": 4},
        (2, {"n": 1}, True, 4, [4, 5, 6, 7]),
    ),
    "manually before the loop": (
        {"iteration": 0},
        (2, {"n": 1}, True, 0, [1, 2, 3, 4, 5, 6, 7]),
    ),
    "the end of the last iteration": (
        {"iteration": 7, "event": ITERATION, "entry": BEGAN},
        (1, {"n": 0}, True, 7, [7]),
    ),
    "after the loop": (
        {"iteration": 4, "entry": BEGAN, "after_loop": True},
        (1, {"n": 0}, True, 4, [4, 5, 6, 7]),
    ),
    "after the loop, entered there": (
        {"iteration": 4, "entry": BEGAN_AFTER, "after_loop": True},
        (1, {"n": 0}, True, 4, []),
    ),
    "manually after the loop": ({"iteration": 4, "after_loop": True}, (2, {"n": 1}, True, 4, [])),
    "beyond the limit": ({"iteration": 20, "event": ITERATION}, (2, {"n": 1}, True, 20, [])),
}


@pytest.mark.parametrize("case", CASES)
def test_the_latest_checkpoint_decides_where_a_run_resumes(case: str) -> None:
    checkpoint, expected = CASES[case]
    assert seen(restored(**checkpoint)) == expected


def test_a_run_without_any_checkpoint_starts_at_the_beginning() -> None:
    run = Attempts(lambda run: None).attempt()
    assert seen(run) == (0, {}, False, 0, [1, 2, 3, 4, 5, 6, 7])
    assert (run.agent_id, run.run_id, run.attempt, run.metadata, run.task) == ("a", "run", 1, {}, None)


def test_metadata_is_restored_from_a_checkpoint_of_this_run_only() -> None:
    assert restored(1).metadata == {"k": "v"}
    assert restored(0, entry=BEGAN).metadata == {"k": "v"}
    assert restored(1, "other").metadata == {}


def test_changing_a_resumed_run_does_not_change_its_checkpoint() -> None:
    attempts = Attempts(lambda run: run.conversation.append(Message.user("more")), EveryN(1))
    attempts.go()
    before = attempts.latest
    run = attempts.attempt()
    run.conversation.append(Message.user("more"))
    run.state["x"] = 1
    assert (len(before.conversation), before.state) == (1, {})


@pytest.mark.parametrize(
    ("fields", "beyond"),
    [
        ({"iteration": 3, "event": ITERATION}, 3),
        ({"iteration": 3, "event": LLM, "entry": BEGAN}, 2),
        ({"iteration": 3}, 2),
        ({"iteration": 1, "entry": BEGAN}, 0),
        ({"iteration": 0, "entry": BEGAN}, 0),
    ],
)
def test_steps_that_no_resume_needs_can_be_dropped(fields: dict[str, Any], beyond: int) -> None:
    run = Attempts(lambda run: None).attempt()
    run.iterations()
    assert run.resumes_beyond(Checkpoint.new("a", INSIDE, run_id="run", **fields)) == beyond
    assert run.resumes_beyond(Checkpoint.new("a", INSIDE, run_id="other", **fields)) == 0


def test_the_steps_of_the_ended_iteration_are_kept_until_the_loop_starts() -> None:
    run = Attempts(lambda run: None).attempt()
    latest = Checkpoint.new("a", INSIDE, 3, run_id="run", event=ITERATION)
    assert run.resumes_beyond(latest) == 2


def snapshots(run: AgentRun) -> tuple[Any, ...]:
    made = run.snapshot()
    entry = made.entry and (len(made.entry.conversation), made.entry.state)
    return made.iteration, made.event, entry, len(made.conversation)


def test_a_snapshot_contains_the_entry_of_its_iteration() -> None:
    run = Attempts(lambda run: None).attempt()
    run.conversation.append(Message.user("0"))
    assert snapshots(run) == (0, None, (0, {}), 1)
    for iteration in run.iterations(limit=2):
        run.state["n"] = iteration
        run.conversation.append(Message.user("i"))
        entered = {"n": iteration - 1} if iteration > 1 else {}
        assert snapshots(run) == (iteration, None, (iteration, entered), iteration + 1)
    assert run.iteration == 2
    assert snapshots(run) == (2, None, (2, {"n": 1}), 3), "a resume enters the last iteration again"
    run.state["after"] = True
    assert snapshots(run) == (2, None, (2, {"n": 1}), 3)


def test_after_a_break_a_run_is_still_in_its_iteration() -> None:
    run = Attempts(lambda run: None).attempt()
    for iteration in run.iterations(limit=5):
        if iteration == 2:
            break
    assert snapshots(run) == (2, None, (0, {}), 0)


def test_a_resumed_run_keeps_its_position_before_the_loop() -> None:
    assert snapshots(restored(4, event=ITERATION)) == (5, None, (2, {"n": 1}), 2)
    assert snapshots(restored(4, entry=BEGAN)) == (4, None, (1, {"n": 0}), 1)


def test_a_run_stopped_between_iterations_resumes_with_the_next() -> None:
    iterations: list[int] = []

    def body(run: AgentRun) -> str:
        iterations.extend(run.iterations(limit=4))
        return "done"

    attempts = Attempts(body, Never())
    for stop in (1, 2, 3):
        run = attempts.attempt()
        attempts.host.stop_after_iteration = stop
        with pytest.raises(HandOff):
            attempts.go(run)
        assert (attempts.latest.iteration, attempts.latest.event) == (stop, ITERATION)
    assert attempts.go()[0] == "done"
    assert iterations == [1, 2, 3, 4]


def test_a_second_loop_is_refused() -> None:
    run = Attempts(lambda run: None).attempt()
    assert list(run.iterations(limit=1)) == [1]
    with pytest.raises(RunMisused, match=r"called twice"):
        run.iterations()


def test_a_new_run_of_the_agent_continues_its_history_and_counts_from_zero() -> None:
    def body(run: AgentRun) -> tuple[Any, ...]:
        before = len(run.conversation), dict(run.state), run.resumed
        run.conversation.append(Message.user(run.run_id))
        run.state[run.run_id] = list(run.iterations(limit=2))
        return before

    store = MemoryCheckpointStore()
    assert Attempts(body, EveryN(1), store=store, run_id="r1").go()[0] == (0, {}, False)
    assert Attempts(body, EveryN(1), store=store, run_id="r2").go()[0] == (1, {"r1": [1, 2]}, False)
    latest = store.load_latest("a")
    assert latest is not None
    assert latest.state == {"r1": [1, 2], "r2": [1, 2]}


def test_events_are_emitted_in_order() -> None:
    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=2):
            run.llm(lambda: {"role": "assistant", "content": "x"})

    attempts = Attempts(body)
    attempts.go()
    assert attempts.host.events == [(1, LLM), (1, ITERATION), (2, LLM), (2, ITERATION)]


def test_a_checkpoint_at_the_end_of_an_iteration_has_an_entry_only_if_it_is_the_last() -> None:
    attempts = Attempts(lambda run: list(run.iterations(limit=2)), EveryN(1))
    attempts.go()
    ends = [one for one in attempts.store.list("a") if one.event == ITERATION]
    assert [(one.iteration, one.entry is None) for one in ends] == [(2, False), (1, True)]


def test_a_state_that_json_cannot_represent_is_an_error_that_names_it() -> None:
    def body(run: AgentRun) -> None:
        for _ in run.iterations(limit=2):
            run.state["seen"] = {1, 2}

    with pytest.raises(ValueError, match=r"state\.seen is of type set"):
        Attempts(body).go()


def test_run_metadata_is_in_every_checkpoint_and_extra_metadata_in_one() -> None:
    def body(run: AgentRun) -> None:
        run.metadata["who"] = "me"
        made = run.checkpoint(cost=3)
        assert made.metadata == {"who": "me", "cost": "3"}
        list(run.iterations(limit=1))

    attempts = Attempts(body, EveryN(1))
    attempts.go()
    assert [one.metadata for one in attempts.store.list("a")][-2:] == [
        {"who": "me"},
        {"who": "me", "cost": "3"},
    ]
