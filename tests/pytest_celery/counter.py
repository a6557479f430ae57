"""An agent for the workers of a setup. They get a copy of this file, and their logs show what
it does.
"""

from __future__ import annotations

from celery_ckpt import AgentRun, EveryN, agent_task
from tests.pytest_celery.gate import pass_gate


@agent_task(name="counting", strategy=EveryN(1))
def counting(run: AgentRun, n: int, *, held: bool = False) -> list[int]:
    """Add the numbers up to ``n``, one per iteration. Log each number when it is added and when it is
    recorded.

    With ``held``, the first attempt waits at the gate while it adds the third number.
    """

    def add(number: int) -> int:
        print(f"adds {number};", flush=True)  # noqa: T201
        if held and (number, run.attempt) == (3, 1):
            pass_gate(run.task)
        return run.state.get("sum", 0) + number

    for number in run.iterations(limit=n):
        run.state["sum"] = run.step("add", add, number)
        print(f"has {number};", flush=True)  # noqa: T201
    return [run.state["sum"], run.attempt, run.task.request.retries]
