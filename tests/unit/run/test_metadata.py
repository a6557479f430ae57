"""Metadata of a run is in all its checkpoints, metadata of one checkpoint only there: also
after a resume.
"""

from __future__ import annotations

from typing import Any

import pytest

from celery_ckpt import AgentRun, Checkpoint, CheckpointStrategy, EveryN, Never
from tests.support.run_host import Attempts, chat_reply

STRATEGIES: dict[str, CheckpointStrategy] = {
    "never": Never(),
    "every": EveryN(1),
    "second": EveryN(2),
}


def count(run: AgentRun, name: str) -> None:
    run.metadata[name] = str(int(run.metadata.get(name, 0)) + 1)


def noting(run: AgentRun) -> None:
    """Change the metadata of all checkpoints, and add more to some."""
    if not run.resumed:
        run.metadata["who"] = "the run"
    for iteration in run.iterations(limit=3):
        run.metadata["begun"] = str(iteration)
        run.llm(lambda: chat_reply(f"iteration {run.iteration}"))
        if iteration != 2:
            run.checkpoint(note=f"iteration {iteration}", who="this one")
        else:
            count(run, "second")
        run.step("look", lambda: 1)
    count(run, "after")
    run.step("last", lambda: 2)


def helped(run: AgentRun) -> None:
    """Leave the checkpoints to the strategy."""
    for _ in run.iterations(limit=3):
        count(run, "begun")
        run.llm(lambda: chat_reply(f"iteration {run.iteration}"))
        count(run, "answered")
    count(run, "after")


BODIES = {"noting": noting, "helped": helped}


def said(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """Return the content of a checkpoint without its time."""
    return checkpoint.iteration, checkpoint.event, len(checkpoint.conversation), checkpoint.metadata


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("body", BODIES)
def test_a_run_killed_at_any_point_takes_the_same_checkpoints(body: str, strategy: str) -> None:
    undisturbed = Attempts(BODIES[body], STRATEGIES[strategy])
    _, run = undisturbed.go()
    taken = [said(checkpoint) for checkpoint in undisturbed.store.list("a")]
    assert undisturbed.host.writes > 2
    for place in range(2 * undisturbed.host.writes):
        attempts = Attempts(BODIES[body], STRATEGIES[strategy])
        assert attempts.killed(place)
        _, again = attempts.go()
        assert again.metadata == run.metadata, place
        found = [said(checkpoint) for checkpoint in attempts.store.list("a")]
        assert found[:1] == taken[:1], place
        assert [one for one in found if one not in taken] == [], place


def test_run_metadata_is_written_only_if_it_differs_from_the_checkpoint_metadata() -> None:
    attempts = Attempts(lambda run: None)
    run = attempts.attempt()
    run.metadata["who"] = "the run"
    run.checkpoint()
    assert attempts.latest.run_metadata is None
    run.checkpoint(pin="label")
    assert attempts.latest.run_metadata is None
    run.checkpoint(note="once")
    assert attempts.latest.run_metadata == {"who": "the run"}


def test_a_checkpoint_without_separate_run_metadata_resumes_with_its_metadata() -> None:
    attempts = Attempts(lambda run: None)
    run = attempts.attempt()
    old = run.snapshot(metadata={"note": "once", "pin": "x"})
    attempts.store.save(old.model_copy(update={"run_metadata": None}))
    assert attempts.attempt().metadata == {"note": "once"}
