"""A body pins one checkpoint: only that one, also after a resume."""

from __future__ import annotations

import pytest

from celery_ckpt import AgentRun, EveryN, Message
from celery_ckpt.errors import InvalidName
from tests.support.run_host import Attempts


def body(run: AgentRun) -> None:
    run.metadata["of"] = "the run"
    for iteration in run.iterations(limit=4):
        run.conversation.append(Message.user(f"iteration {iteration}"))
        if iteration == 2:
            pinned = run.checkpoint(pin="before-deploy", note="once")
            assert pinned.metadata == {"of": "the run", "note": "once", "pin": "before-deploy"}


def test_a_pin_applies_to_one_checkpoint() -> None:
    attempts = Attempts(body, EveryN(1))
    attempts.go()
    pins = [info.pin for info in attempts.store.history("a")]

    assert pins == [None, None, None, None, "before-deploy", None]


def test_a_pin_is_not_inherited_by_checkpoints_after_a_resume() -> None:
    attempts = Attempts(body, EveryN(1))
    # Killed right after the pinned checkpoint was saved: the next attempt begins with that checkpoint.
    assert attempts.killed(kill_at=5)
    assert attempts.latest.metadata["pin"] == "before-deploy"
    _, run = attempts.go()

    assert run.resumed
    assert run.metadata == {"of": "the run"}
    labels = [info.pin for info in attempts.store.history("a") if info.iteration > 2]
    assert labels == [None] * len(labels)
    assert len(labels) >= 2


def test_a_label_must_be_a_valid_name() -> None:
    run = Attempts(body).attempt()
    with pytest.raises(InvalidName, match="label"):
        run.checkpoint(pin="")
