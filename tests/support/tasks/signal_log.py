"""Receivers of all signals, in the worker, that note in the ledger what they receive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery.utils.dispatch import Signal

from celery_ckpt import AgentRun, CheckpointStore, EveryN, agent_task, signals
from celery_ckpt.errors import StoreUnavailable
from celery_ckpt.runtime.process.context import AppContext
from tests.support.ledger import here, is_worker

#: The signals of a run.
SIGNALS: dict[str, Signal] = {
    name: getattr(signals, name) for name in signals.__all__ if name != "checkpoints_pruned"
}


def _receiver(name: str) -> Any:
    def receive(sender: Any, signal: Any, **facts: Any) -> None:
        run = facts.get("run")
        run_id = facts["run"].run_id if run else sender.request.id
        kinds = {fact: type(value).__name__ for fact, value in facts.items()}
        texts = {fact: str(facts[fact]) for fact in ("event", "reason", "name") if fact in facts}
        here().note(run_id, name, sender=sender.name, kinds=kinds, texts=json.dumps(texts))

    return receive


def _broken(**_: Any) -> None:
    raise RuntimeError("an error of the receiver")


RECEIVERS = {name: _receiver(name) for name in SIGNALS}
# The tests import this module too, and emit these signals in thousands of simulated runs.
if is_worker():
    for name, signal in SIGNALS.items():
        signal.connect(_broken)
        signal.connect(RECEIVERS[name])


@agent_task(strategy=EveryN(1), iterations_per_task=2)
def emits_events(run: AgentRun, n: int) -> int:
    """Emit events in each iteration."""
    for _ in run.iterations(limit=n):
        run.llm(_answer)
    return run.iteration


def _answer() -> dict[str, str]:
    return {"role": "assistant", "content": "yes"}


@agent_task(strategy=EveryN(1), autoretry_for=())
def failing(run: AgentRun) -> None:
    raise ValueError("no")


@agent_task(strategy=EveryN(1))
def changing(run: AgentRun, path: str) -> str:
    """Ask for a different step in the second attempt."""
    marker = Path(path)
    if marker.exists():
        return str(run.step("name", str.upper, "new"))
    run.step("name", str.upper, "old")
    marker.touch()
    raise ConnectionError("once more")


@agent_task(strategy=EveryN(1))
def without_a_store(run: AgentRun) -> str:
    """Make the first checkpoint fail because the store is unavailable."""
    store: CheckpointStore = AppContext.of(run.task.app).store
    save = store.save

    def unavailable(*args: Any, **kwargs: Any) -> None:
        store.save = save  # type: ignore[method-assign]
        raise StoreUnavailable(where="a test", reason="simulated")

    store.save = unavailable  # type: ignore[method-assign]
    for _ in run.iterations(limit=2):
        run.step("work", str.upper, "on")
    return "done"


@agent_task(strategy=EveryN(1))
def overtaken(run: AgentRun) -> None:
    """Let another owner take the lease of its agent."""
    context = AppContext.of(run.task.app)
    holder = context.store.holder(run.agent_id)
    lease = context.store.acquire(run.agent_id, "another owner", 0.05, over=holder)
    context.store.release(lease)
    if run.attempt == 1:
        run.step("too late", str.upper, "x")
