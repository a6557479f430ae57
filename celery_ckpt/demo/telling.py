"""Writes down, in the workers, what becomes of their attempts. The agents need none of it."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import task_failure, task_prerun, task_success

from celery_ckpt import AgentRun, Checkpoint, open_store, signals
from celery_ckpt.demo.ledger import here


def of_tasks() -> None:
    """Plain tasks: each execution begins from nothing."""
    task_prerun.connect(lambda **_: here().note("begin"), weak=False)
    _of_ends()


def of_agents(app: Celery) -> None:
    """Agents: where they begin, and when they are saved and handed off."""

    def resumed(run: AgentRun, **_: Any) -> None:
        saved, replays = _to_replay(app.conf.ckpt_store_url, run)
        here().note("resume", saved=saved, replays=replays)

    def saved(run: AgentRun, checkpoint: Checkpoint, **_: Any) -> None:
        here().note("checkpoint", iteration=checkpoint.iteration)

    signals.agent_started.connect(lambda **_: here().note("begin"), weak=False)
    signals.agent_resumed.connect(resumed, weak=False)
    signals.checkpoint_saved.connect(saved, weak=False)
    signals.agent_handed_off.connect(lambda **_: here().note("hand-off"), weak=False)
    _of_ends()


def _of_ends() -> None:
    """Celery has the result, whichever it is."""

    def failed(exception: BaseException, **_: Any) -> None:
        here().note("failure", reason=repr(exception))

    task_success.connect(lambda **_: here().note("answer"), weak=False)
    task_failure.connect(failed, weak=False)


def _to_replay(store_url: str, run: AgentRun) -> tuple[int, list[int]]:
    """The iteration of the latest checkpoint, and those of the recorded steps after it."""
    with open_store(store_url) as store:
        latest = store.load_latest(run.agent_id)
        steps = store.steps(run.agent_id, run.run_id)
    assert latest is not None
    first = latest.iteration + (latest.entry is None)
    return latest.iteration, [step.iteration for step in steps if step.iteration >= first]
