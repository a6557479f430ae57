"""The actors of each plan, what they do, and every schedule of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from celery_ckpt import Agents
from celery_ckpt.records import RunStatus
from tests.protocol.actors import Process
from tests.protocol.schedules import JUMP, Actor, Deviations, Execution, alternatives
from tests.protocol.world import AGENT, World, pause

OPERATOR, RENEWER = "operator", "renewer of first"
#: The name of a step and the deviation before it, in the order in which they happen.
Given = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plan:
    """What happens in a scenario."""

    runs: tuple[str, ...] = ("run 1",)
    #: Options of the task.
    options: dict[str, Any] = field(default_factory=dict)
    #: How many attempts of each run fail.
    fails: int = 0
    max_retries: int = 0
    #: The runs whose messages no worker takes until nothing else is left to do.
    unrouted: frozenset[str] = frozenset()
    #: True if the calls are ``run.llm``, whose event saves a checkpoint with each reply.
    talks: bool = False
    #: What the operator does when a deviation gives it the turn.
    operator: Callable[[Agents, World], object] | None = None
    #: True if the operator repeats it after a crash in the middle of it.
    repeats: bool = False
    #: The deviations that every schedule has, each with the step that it precedes.
    given: Given = ()

    @property
    def task_options(self) -> dict[str, Any]:
        retries = {"max_retries": self.max_retries, "retry_backoff": False, "default_retry_delay": 1}
        return {**retries, **self.options}


def _cancel(agents: Agents, world: World) -> None:
    agents.cancel(AGENT)


def _delete(agents: Agents, world: World) -> None:
    agents.delete(AGENT)


def _lose(agents: Agents, world: World) -> None:
    pause("lose the store")
    world.lose()


def _lose_first_message(agents: Agents, world: World) -> None:
    pause("lose a message")
    world.lose_message("run 1")


def _repair_and_resume(agents: Agents, world: World) -> None:
    def has_failed() -> bool:
        run = world.store.run(AGENT, "run 1")
        return run is not None and run.status is RunStatus.FAILED and run.is_settled

    pause("read that it has failed", has_failed)
    world.fails, world.resumed = 0, 1
    agents.resume(AGENT)


_TWO = ("run 1", "run 2")
_THREE = (*_TWO, "run 3")
_AT_WORK = "the model answers"
PLANS = {
    "one run": Plan(),
    "two runs of one agent": Plan(_TWO),
    "a younger run is delivered first": Plan(_TWO, given=(("start_run", "second"),)),
    "the last of three is delivered first": Plan(
        _THREE, given=(("start_run", "second"), ("record it as unacknowledged", "first"))
    ),
    "the first message is lost": Plan(
        _TWO, operator=_lose_first_message, given=(("take a message", OPERATOR),)
    ),
    "no worker takes the first message": Plan(_THREE, unrouted=frozenset({"run 1"})),
    "each reply is recorded and saved": Plan(talks=True),
    "renewed late": Plan(given=((_AT_WORK, JUMP), (_AT_WORK, RENEWER))),
    "renewed late while another run is blocked": Plan(
        _TWO, given=((_AT_WORK, "second"), (_AT_WORK, JUMP), (_AT_WORK, RENEWER))
    ),
    "handed off after each iteration": Plan(options={"iterations_per_task": 1}),
    "retried immediately": Plan(options={"default_retry_delay": 0}, fails=1, max_retries=1),
    "retried until it fails": Plan(_TWO, fails=2, max_retries=1),
    "resumed manually": Plan(fails=1, operator=_repair_and_resume, repeats=True),
    "cancelled": Plan(options={"track_started": True}, fails=1, max_retries=1, operator=_cancel),
    "cancelled while running and another run is blocked": Plan(
        _TWO, operator=_cancel, given=((_AT_WORK, "second"), (_AT_WORK, OPERATOR))
    ),
    "cancelled while it is retried": Plan(
        fails=1, max_retries=1, operator=_cancel, given=(("store the result: RETRY", OPERATOR),)
    ),
    "deleted": Plan(_TWO, operator=_delete),
    "deleted while running and another run is blocked": Plan(
        _TWO, operator=_delete, given=((_AT_WORK, "second"), (_AT_WORK, OPERATOR))
    ),
    "deleted while it is retried": Plan(
        options={"track_started": True},
        fails=1,
        max_retries=1,
        operator=_delete,
        given=(("store the result: RETRY", OPERATOR),),
    ),
    "lost": Plan(_TWO, operator=_lose),
    "lost while it is retried": Plan(
        fails=1, max_retries=1, operator=_lose, given=(("store the result: RETRY", OPERATOR),)
    ),
    "lost while running": Plan(
        options={"track_started": True}, operator=_lose, given=((_AT_WORK, OPERATOR),)
    ),
}


class Scenario:
    """Two workers, a watchdog, a caller and, in some plans, an operator."""

    def __init__(self, name: str, given: Given = ()) -> None:
        self.plan = plan = PLANS[name]
        first, second, dog, caller, operator = (
            Process(name, **plan.task_options)
            for name in ("first", "second", "dog", "caller", OPERATOR)
        )
        self.actors = [
            Actor("caller", caller, caller.send(*plan.runs), is_replaced=False),
            Actor("first", first, first.work),
            Actor("second", second, second.work),
            Actor(RENEWER, first, first.renew),
            Actor("renewer of second", second, second.renew),
            Actor("watchdog", dog, dog.watch),
        ]
        if plan.operator is not None:
            act = operator.operate(plan.operator)
            self.actors.append(Actor(OPERATOR, operator, act, is_replaced=plan.repeats))
        #: The deviations that every schedule has.
        self.given: dict[int, str] = {}
        for what, who in (*plan.given, *given):
            self.given[self._next_step(what)] = who

    def _next_step(self, what: str) -> int:
        steps, after = self.run(self.given).steps, max(self.given, default=-1)
        found = (number for number, (_, before, _) in enumerate(steps) if before == what)
        return next(number for number in found if number > after)

    def run(self, deviations: Deviations) -> Execution:
        """Run one schedule."""
        plan = self.plan
        world = World(
            fails=plan.fails,
            max_retries=plan.max_retries,
            talks=plan.talks,
            unrouted=plan.unrouted,
        )
        return Execution(self.actors, deviations, world).run()


def failure_report(execution: Execution, deviations: Deviations) -> str:
    """Return what went wrong, with the steps that led to it."""
    steps = "\n".join(
        f"  {number:3} {who}: {what}{'   <- ' + deviations[number] if number in deviations else ''}"
        for number, (who, what, _) in enumerate(execution.steps)
    )
    return f"{execution.world.wrong} with {dict(deviations)}\n{steps}"


def explore(scenario: Scenario, depth: int, deviations: Deviations = MappingProxyType({})) -> int:
    """Run every schedule with at most ``depth`` more deviations. Return the number of schedules."""
    execution = scenario.run(deviations)
    assert not execution.world.wrong, failure_report(execution, deviations)
    if not depth:
        return 1
    behind = alternatives(execution, max(deviations, default=-1))
    return 1 + sum(
        explore(scenario, depth - 1, {**deviations, number: what}) for number, what in behind
    )
