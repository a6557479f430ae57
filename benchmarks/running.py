"""The budgets that need workers: what an agent task costs, and how soon a killed one resumes."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from benchmarks.budgets import Budget
from benchmarks.contenders import Place
from benchmarks.measure import Plan
from benchmarks.pairs import alternate
from benchmarks.workers import URL, workers

#: How many tasks make one measurement.
_BATCH = 100
_DEADLINE = 60.0


def agent_task(place: Place, plan: Plan) -> Budget:
    """Compare agent tasks with plain tasks that wait 10 ms, on two processes.

    They are sent while the worker does not consume, so that only its work is measured.
    """
    with _workers(place, 2) as tasks:
        pair = alternate(
            lambda: _executed(tasks.agent), lambda: _executed(tasks.plain), plan.batches, warm_up=1
        )
    what, limit_is = "an agent task without checkpoints", "a plain task (acks_late, 10 ms body)"
    return Budget.of(what, limit_is, pair, 1 / 0.85)


def resume_of_a_killed_child(place: Place, plan: Plan) -> Budget:
    """Measure from the kill of a pool child to the first iteration of the next attempt."""
    with _workers(place, 2) as tasks:
        times = [_resumed(tasks, lambda pid: os.kill(pid, signal.SIGKILL)) for _ in range(plan.kills)]
    return _seconds("resume after a pool child was killed", times, 2)


def resume_of_a_killed_worker(place: Place, plan: Plan) -> Budget:
    """Measure from the kill of a whole worker to the first iteration in another one."""
    times = []
    for _ in range(plan.kills):
        with _workers(place, 1, 1) as tasks:
            times.append(_resumed(tasks, lambda pid: os.killpg(os.getpgid(pid), signal.SIGKILL)))
    return _seconds("resume after a whole worker was killed, lease 3 s", times, 6)


RUNNING = (agent_task, resume_of_a_killed_child, resume_of_a_killed_worker)


def _seconds(what: str, times: list[float], allowed: float) -> Budget:
    worst = max(times)
    return Budget(f"{what} (worst of {len(times)})", "one second", worst, 1.0, worst, allowed)


@contextmanager
def _workers(place: Place, *slots: int) -> Iterator[Any]:
    """Start workers with these numbers of slots. Yields the module with their tasks."""
    os.environ[URL] = place.redis_url
    with workers(place.directory, *slots):
        from benchmarks import agents

        yield agents


def _executed(task: Any) -> float:
    """Return how long a worker takes for each task of a batch."""
    with _not_consuming(task.app):
        results = [task.delay() for _ in range(_BATCH)]
    start = perf_counter()
    for result in results:
        result.get(timeout=_DEADLINE)
    return (perf_counter() - start) / _BATCH


@contextmanager
def _not_consuming(app: Any) -> Iterator[None]:
    queue = app.conf.task_default_queue
    app.control.cancel_consumer(queue, reply=True, timeout=_DEADLINE, limit=1)
    try:
        yield
    finally:
        app.control.add_consumer(queue, reply=True, timeout=_DEADLINE, limit=1)


def _resumed(tasks: Any, kill: Callable[[int], None]) -> float:
    with tempfile.NamedTemporaryFile() as file:
        path = Path(file.name)
        tasks.long.delay(str(path))
        before = _wait_for(path, lambda lines: len(lines) >= 4)[-1]
        start = monotonic()
        kill(int(before[1]))
        after = _wait_for(path, lambda lines: int(lines[-1][2]) > int(before[2]))
        first = next(line for line in after if int(line[2]) > int(before[2]))
        _forget(tasks)
        return float(first[3]) - start


def _wait_for(path: Path, condition: Callable[[list[list[str]]], bool]) -> list[list[str]]:
    end = monotonic() + _DEADLINE
    while monotonic() < end:
        lines = [line.split() for line in path.read_text().splitlines() if line.count(" ") == 3]
        if lines and condition(lines):
            return lines
        sleep(0.005)
    raise RuntimeError("the agent did not resume in time")


def _forget(tasks: Any) -> None:
    from celery_ckpt import Agents

    agents = Agents(tasks.app)
    for agent in agents.list("running"):
        agents.cancel(agent.agent_id)
