"""The app of the benchmark's workers: a plain task, and agents."""

from __future__ import annotations

import os
import time

from celery import Celery

from benchmarks.workers import URL
from celery_ckpt import AgentRun, EveryN, agent_task

BODY_SECONDS = 0.01
LEASE_SECONDS = 3
_server = os.environ[URL].rsplit("/", 1)[0]

app = Celery("benchmarks", broker=f"{_server}/3", backend=f"{_server}/4")
app.conf.update(
    broker_connection_retry_on_startup=True,
    ckpt_store_url=f"{_server}/5",
    ckpt_lease_ttl=LEASE_SECONDS,
    worker_prefetch_multiplier=4,
)
app.set_current()


@app.task(acks_late=True)
def plain() -> int:
    """Wait, as a plain Celery task."""
    time.sleep(BODY_SECONDS)
    return 1


@agent_task(app=app, strategy="never")
def agent(run: AgentRun) -> int:
    """Wait, as an agent without checkpoints."""
    time.sleep(BODY_SECONDS)
    return 1


@agent_task(app=app, strategy="never")
def waiting(run: AgentRun, path: str) -> int:
    """Wait for a model that does not answer. The benchmark kills the worker."""
    with open(path, "a") as file:  # noqa: PTH123
        file.write("waits\n")
    time.sleep(600)
    return 1


@agent_task(app=app, strategy=EveryN(1))
def long(run: AgentRun, path: str) -> int:
    """Write when and where each iteration began. The benchmark cancels it."""
    for iteration in run.iterations(limit=600):
        with open(path, "a") as file:  # noqa: PTH123
            file.write(f"{iteration} {os.getpid()} {run.attempt} {time.monotonic()}\n")
        run.step("wait", time.sleep, 0.05)
    return 1
