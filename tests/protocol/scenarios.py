"""Who is there, what they do, and every schedule of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from celery_ckpt import Agents
from celery_ckpt.records import RunStatus
from tests.protocol.actors import Process
from tests.protocol.schedules import Actor, Deviations, Execution, alternatives
from tests.protocol.world import AGENT, World, pause

OPERATOR = "operator"
#: The name of a step, and the deviation before it, one behind the other.
Given = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plan:
    """What is to happen."""

    runs: tuple[str, ...] = ("run 1",)
    #: Of the task.
    options: dict[str, Any] = field(default_factory=dict)
    #: How many attempts at each run fail.
    fails: int = 0
    max_retries: int = 0
    #: What somebody does from outside, whenever a deviation says so.
    operator: Callable[[Agents, World], object] | None = None
    #: Does he try it once more if he dies in the midst of it?
    insists: bool = False
    #: What comes before which steps, in every schedule.
    given: Given = ()

    @property
    def task_options(self) -> dict[str, Any]:
        retries = {"max_retries": self.max_retries, "retry_backoff": False, "default_retry_delay": 1}
        return {**retries, **self.options}


def _cancel(agents: Agents, world: World) -> None:
    agents.cancel(AGENT)


def _delete(agents: Agents, world: World) -> None:
    agents.delete(AGENT)


def _mend_and_resume(agents: Agents, world: World) -> None:
    def has_failed() -> bool:
        run = world.store.run(AGENT, "run 1")
        return run is not None and run.status is RunStatus.FAILED and run.is_settled

    pause("see that it has failed", has_failed)
    world.fails, world.resumed = 0, 1
    agents.resume(AGENT)


_TWO = ("run 1", "run 2")
_AT_WORK = "the model answers"
PLANS = {
    "one run": Plan(),
    "two runs of one agent": Plan(_TWO),
    "handed off after each iteration": Plan(options={"iterations_per_task": 1}),
    "tried again at once": Plan(options={"default_retry_delay": 0}, fails=1, max_retries=1),
    "tried again until it fails": Plan(_TWO, fails=2, max_retries=1),
    "resumed by hand": Plan(fails=1, operator=_mend_and_resume, insists=True),
    "cancelled": Plan(options={"track_started": True}, fails=1, max_retries=1, operator=_cancel),
    "cancelled at work while another waits": Plan(
        _TWO, operator=_cancel, given=((_AT_WORK, "second"), (_AT_WORK, OPERATOR))
    ),
    "cancelled while it is tried again": Plan(
        fails=1, max_retries=1, operator=_cancel, given=(("keep the result: RETRY", OPERATOR),)
    ),
    "deleted": Plan(_TWO, operator=_delete),
    "deleted at work while another waits": Plan(
        _TWO, operator=_delete, given=((_AT_WORK, "second"), (_AT_WORK, OPERATOR))
    ),
}


class Scenario:
    """Two workers, a watchdog, a caller, and perhaps somebody who acts from outside."""

    def __init__(self, name: str, given: Given = ()) -> None:
        self.plan = plan = PLANS[name]
        first, second, dog, caller, operator = (
            Process(name, **plan.task_options)
            for name in ("first", "second", "dog", "caller", OPERATOR)
        )
        self.actors = [
            Actor("caller", caller, caller.send(*plan.runs), comes_back=False),
            Actor("first", first, first.work),
            Actor("second", second, second.work),
            Actor("watchdog", dog, dog.watch),
        ]
        if plan.operator is not None:
            act = operator.operate(plan.operator)
            self.actors.append(Actor(OPERATOR, operator, act, comes_back=plan.insists))
        #: What happens in every schedule.
        self.given: dict[int, str] = {}
        for what, who in (*plan.given, *given):
            self.given[self._next_step(what)] = who

    def _next_step(self, what: str) -> int:
        steps, after = self.run(self.given).steps, max(self.given, default=-1)
        found = (number for number, (_, before, _) in enumerate(steps) if before == what)
        return next(number for number in found if number > after)

    def run(self, deviations: Deviations) -> Execution:
        """One schedule."""
        plan = self.plan
        world = World(fails=plan.fails, max_retries=plan.max_retries)
        return Execution(self.actors, deviations, world).run()


def told(execution: Execution, deviations: Deviations) -> str:
    """What went wrong, and how to see it again."""
    steps = "\n".join(
        f"  {number:3} {who}: {what}{'   <- ' + deviations[number] if number in deviations else ''}"
        for number, (who, what, _) in enumerate(execution.steps)
    )
    return f"{execution.world.wrong} with {dict(deviations)}\n{steps}"


def explore(scenario: Scenario, depth: int, deviations: Deviations = MappingProxyType({})) -> int:
    """Run every schedule with at most so many more deviations; returns how many there were."""
    execution = scenario.run(deviations)
    assert not execution.world.wrong, told(execution, deviations)
    if not depth:
        return 1
    behind = alternatives(execution, max(deviations, default=-1))
    return 1 + sum(
        explore(scenario, depth - 1, {**deviations, number: what}) for number, what in behind
    )
