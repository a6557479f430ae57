"""Agents that override the hooks of Celery tasks. A hook may fail."""

from __future__ import annotations

from typing import Any

from celery_ckpt import AgentRun, AgentTask, agent_task
from tests.support.ledger import here


class Hooked(AgentTask[Any, Any]):
    """A task that notes which hooks were called. The hook named by ``fails`` fails."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: dict[str, Any]) -> None:
        self._called("before_start", task_id, kwargs)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: dict[str, Any]) -> None:
        self._called("on_success", task_id, kwargs)

    def on_failure(
        self, exc: Exception, task_id: str, args: Any, kwargs: dict[str, Any], einfo: Any
    ) -> None:
        self._called("on_failure", task_id, kwargs)

    def _called(self, hook: str, task_id: str, kwargs: dict[str, Any]) -> None:
        here().note(task_id, hook)
        if kwargs["fails"] == hook:
            raise RuntimeError(f"{hook} has failed")


@agent_task(base=Hooked, iterations_per_task=1, autoretry_for=())
def hooked(run: AgentRun, fails: str) -> int:
    """Hand off once. Fail if the hook to test is ``on_failure``."""
    for floor in run.iterations(limit=2):
        here().call(run.run_id, f"floor {floor}")
    if fails == "on_failure":
        raise ValueError("the body has failed")
    return 7
