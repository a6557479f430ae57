"""Async bodies: one loop for each process, and everything that asyncio can do in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.tasks.async_agents import (
    fails_beside,
    parallel,
    sends_others,
    which_loop,
    with_models,
)
from tests.support.tasks.canvas import ask_async, async_facts
from tests.support.workers.site import Site

#: A process with a loop forks, like a worker whose modules have called an agent directly.
FORKING = """
import os, signal
from celery import Celery
from celery_ckpt import agent_task

@agent_task(app=Celery("forking"))
async def one(run):
    return await run.step("one", int, 1)

assert one() == 1
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(one())
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 1, status
"""
SITE = {
    "include": ("tests.support.tasks.async_agents", "tests.support.tasks.canvas"),
    "conf": {"ckpt_lease_ttl": 10},
}


def test_all_tasks_of_a_process_share_one_loop(site: Site) -> None:
    results = [which_loop.delay(0.1) for _ in range(4)]

    seen = [result.get(timeout=60) for result in results] + [which_loop.delay().get(timeout=60)]

    assert len({tuple(one) for one in seen}) == 1
    assert seen[0][2] is True


def test_a_forked_child_of_a_process_with_a_loop_has_its_own_loop() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["gather", "group"])
def test_tools_run_concurrently_and_results_are_in_the_order_of_the_calls(site: Site, how: str) -> None:
    result = parallel.delay(3, how)

    assert result.get(timeout=60) == [60, ["c0", "c1", "c2"] * 2]
    assert site.ledger.repeated(result.id) == {}
    assert len(site.ledger.bodies(result.id)) == 2


def test_the_request_and_its_state_are_visible_from_the_loop(site: Site) -> None:
    result = async_facts.delay()

    assert result.get(timeout=60) == {"id": result.id, "run": result.id, "retries": 0}


def test_a_task_sent_by_a_body_is_its_child(site: Site) -> None:
    result = sends_others.delay()

    sent = [site.app.AsyncResult(task_id) for task_id in result.get(timeout=60)]
    assert [child.get(timeout=60) for child in sent] == [[result.id, result.id]] * 2
    assert [child.id for child in result.children] == [child.id for child in sent]


def test_models_are_validated_and_dumped(site: Site) -> None:
    question = {"text": "why", "asked": "2026-01-02"}

    assert ask_async.delay(question).get(timeout=60) == {"text": "WHY", "length": 2026}
    assert with_models.delay({"number": 1}).get(timeout=60) == {"number": 2}


def test_a_call_concurrent_with_a_failing_one_is_recorded_before_the_retry(site: Site) -> None:
    site.ledger.hold("good")
    result = fails_beside.delay()
    site.ledger.wait_for(lambda note: note.what == "bad", 10)
    site.ledger.let_go()

    assert result.get(timeout=60) == ["good", "bad"]
    assert site.ledger.repeated(result.id) == {}
    assert len(site.ledger.bodies(result.id)) == 2
