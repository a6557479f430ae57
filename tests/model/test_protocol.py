"""The order of writes, explored: the real code, step by step, with everything that can come between."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from actors import Process
from celery.exceptions import Ignore
from scheduling import CRASH, JUMP, Actor, Deviations, Execution, alternatives
from stepping import SteppingUnacked

from celery_ckpt.records import RunStatus
from celery_ckpt.runtime.broker import send
from celery_ckpt.runtime.execution import _finished as finished
from celery_ckpt.runtime.sending import sending
from celery_ckpt.runtime.settling import settle

#: How many things come between, in every combination. With 2 it takes minutes.
DEPTH = int(os.environ.get("CKPT_MODEL_DEPTH", "1"))
SCENARIOS = {
    "one run": ({}, {"run 1": "agent"}),
    "two runs of one agent": ({}, {"run 1": "agent", "run 2": "agent"}),
    "handed off after each iteration": ({"iterations_per_task": 1}, {"run 1": "agent"}),
}


@pytest.fixture(autouse=True)
def stepping_broker() -> Iterator[None]:
    with (
        patch("celery_ckpt.runtime.broker.Unacked", SteppingUnacked),
        # Nobody reads how the tracer tells of exceptions.
        patch(
            "celery.app.trace.ExceptionInfo",
            lambda *_, **__: SimpleNamespace(exception=None, traceback=""),
        ),
        patch("celery_ckpt.runtime.watchdog.is_known_dead", lambda owner: False),
        patch("celery_ckpt.runtime.starting.is_known_dead", lambda owner: False),
    ):
        yield


class Scenario:
    """Two workers, a watchdog, a caller, and the runs that it sends."""

    def __init__(self, name: str) -> None:
        options, self.runs = SCENARIOS[name]
        first, second, dog, caller = (
            Process(name, **options) for name in ("first", "second", "dog", "caller")
        )
        self.actors = [
            Actor("caller", caller, caller.send("agent", *self.runs), comes_back=False),
            Actor("first", first, first.work),
            Actor("second", second, second.work),
            Actor("watchdog", dog, dog.watch),
        ]

    def run(self, deviations: Deviations) -> Execution:
        """One schedule."""
        return Execution(self.actors, deviations).run(self.runs)


def told(execution: Execution, deviations: Deviations) -> str:
    """What went wrong, and how to see it again."""
    steps = "\n".join(
        f"  {number:3} {who}: {what}{'   <- ' + deviations[number] if number in deviations else ''}"
        for number, (who, what, _) in enumerate(execution.steps)
    )
    return f"{execution.world.wrong} with {dict(deviations)}\n{steps}"


def explore(scenario: Scenario, depth: int, deviations: Deviations = MappingProxyType({})) -> int:
    """Run every schedule with at most so many deviations; returns how many there were."""
    execution = scenario.run(deviations)
    assert not execution.world.wrong, told(execution, deviations)
    if len(deviations) == depth:
        return 1
    behind = alternatives(execution, max(deviations, default=-1))
    return 1 + sum(explore(scenario, depth, {**deviations, number: what}) for number, what in behind)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCENARIOS)
def test_all_is_well_whatever_comes_between(name: str) -> None:
    assert explore(Scenario(name), DEPTH) > 40


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_is_well_whatever_four_things_come_between(name: str) -> None:
    scenario, chance = Scenario(name), random.Random(20261116)
    for _ in range(20 * DEPTH):
        deviations: dict[int, str] = {}
        for _ in range(4):
            execution = scenario.run(deviations)
            assert not execution.world.wrong, told(execution, deviations)
            behind = list(alternatives(execution, max(deviations, default=-1)))
            if not behind:
                break
            number, what = chance.choice(behind)
            deviations[number] = what


def _send_before_it_is_released(attempt: Any, run: Any, reason: str) -> BaseException:
    released = attempt.of_run.model_copy(update={"status": RunStatus.QUEUED})
    send(attempt.context.app, released.envelope, has_begun=True, instead_of=attempt.hold.tag)
    attempt.release(released, 5.0)
    return Ignore("handed off")


def _settle_before_celery_has_it(attempt: Any, run: Any, value: Any) -> Any:
    finished(attempt, run, value)
    settle(attempt)
    return value


@contextmanager
def _publish_before_it_is_sealed(
    task_name: str, serializer: str, sealed: Callable[[dict[str, Any]], None]
) -> Iterator[None]:
    envelopes: list[dict[str, Any]] = []
    with sending(task_name, serializer, envelopes.append):
        yield
    sealed(envelopes[0])


#: What is wrong, the scenario in which that is found, and what happens before the one thing between.
BROKEN = {
    "a message is published before its run is on record": (
        ("celery_ckpt.runtime.admission.sending", _publish_before_it_is_sealed),
        "one run",
        # The caller dies between both. A worker that takes the message may die with it, too.
        {1: CRASH},
    ),
    "a hand-off is published before the lease is free": (
        ("celery_ckpt.runtime.execution._handed_off", _send_before_it_is_released),
        "handed off after each iteration",
        {},
    ),
    "a run is settled before Celery has its result": (
        ("celery_ckpt.runtime.execution._finished", _settle_before_celery_has_it),
        "one run",
        {},
    ),
    "whoever lost the lease goes on writing": (
        ("celery_ckpt.stores.leases.LeaseState.refuse", lambda *_: None),
        "one run",
        {9: JUMP},
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_order_is_found(what: str) -> None:
    (name, instead), scenario, before = BROKEN[what]
    with patch(name, instead), pytest.raises(AssertionError, match=r"with \{"):
        explore(Scenario(scenario), len(before) + 1, before)
