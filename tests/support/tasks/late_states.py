"""Workers that can be held just before they store a state, and agents that are deleted or lost then."""

from __future__ import annotations

from typing import Any

from celery.backends.redis import RedisBackend
from celery.signals import worker_init

from celery_ckpt import AgentRun, agent_task
from tests.support.ledger import here

MODULE = "tests.support.tasks.late_states"


def storing(state: str) -> str:
    """Return the name of the call that a test holds, so that workers do not store this state yet."""
    return f"store {state}"


def _work(run_id: str) -> None:
    here().call(run_id, "working")


@agent_task(max_retries=3, retry_backoff=False, default_retry_delay=1)
def fails_first(run: AgentRun) -> str:
    """Fail, with a retry after a second."""
    run.step("work", _work, run.run_id)
    if not run.task.request.retries:
        raise RuntimeError("not now")
    return "done"


@agent_task(ignore_result=True)
def unheard(run: AgentRun) -> None:
    """Make one call. The result of the task is ignored."""
    run.step("work", _work, run.run_id)


# Only in a worker: the tests import this module too.
@worker_init.connect(weak=False)
def _hold_states(**_: Any) -> None:
    original = RedisBackend.store_result

    def store_result(
        self: RedisBackend, task_id: str, result: Any, state: str, *args: Any, **options: Any
    ) -> Any:
        here().call(task_id, storing(state))
        stored = original(self, task_id, result, state, *args, **options)
        here().note(task_id, f"stored {state}")
        return stored

    RedisBackend.store_result = store_result
