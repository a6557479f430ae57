"""A soft time limit that is reached while the body is not running fails nothing."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from celery import Celery, chord
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult

from celery_ckpt import Agents
from celery_ckpt.runtime.task.task import AgentTask
from tests.support.ledger import Ledger
from tests.support.servers.valkey import Valkey
from tests.support.tasks.canvas import collect, note_failure
from tests.support.tasks.interruptions import (
    INTERRUPTION_POINTS,
    MODULE,
    Broken,
    async_count,
    count,
    fail,
    fail_once,
    plain,
)
from tests.support.tasks.retries import outcome
from tests.support.wait import until
from tests.support.workers.broker import STORE_DB
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker

_INCLUDE = (MODULE, "tests.support.tasks.canvas", "tests.support.tasks.retries")
_CONF = {"ckpt_lease_ttl": 30}
FAILS = pytest.param(marks=pytest.mark.configured(conf=_CONF), id="a limit is a failure")
HANDS_OFF = pytest.param(
    marks=pytest.mark.configured(conf={**_CONF, "ckpt_hand_off_on_time_limit": True}),
    id="a limit is a hand-off",
)
pytestmark = pytest.mark.configured(include=_INCLUDE, conf=_CONF)
either_way = pytest.mark.parametrize((), [FAILS, HANDS_OFF])


@either_way
@pytest.mark.parametrize("task", [count, async_count], ids=["sync", "async"])
def test_a_limit_outside_the_body_does_not_fail_the_run(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, task: AgentTask[..., int]
) -> None:
    """Not for the caller, not for its errback, and not for a chord that it is part of."""
    start_worker(concurrency=2)
    # A coroutine does its I/O in threads, which have no current task.
    points = [point for point in INTERRUPTION_POINTS if "update_run" not in point]
    headers = [task.s(point).on_error(note_failure.s()) for point in points]

    result = chord(headers, collect.s())()

    assert result.get(timeout=120) == [3] * len(points)
    parts: list[AsyncResult] = result.parent.results
    assert [outcome(part) for part in parts] == ["SUCCESS"] * len(points)
    assert ledger.calls("errback") == []
    _all_interrupted(ledger, points)
    agents = Agents(celery_app)
    for part in parts:
        until(lambda part=part: agents.status(part.id).status == "succeeded", 30, "it is recorded")


def _all_interrupted(ledger: Ledger, points: list[str]) -> None:
    interrupted = [note["point"] for note in ledger.notes(what="interrupted")]
    assert sorted(interrupted) == sorted(points)


@either_way
@pytest.mark.parametrize("point", ["before update_run", "after update_run"])
def test_a_limit_while_a_failure_is_recorded_does_not_change_that_failure(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, point: str
) -> None:
    start_worker()
    result = fail.apply_async((point,), link_error=note_failure.s())

    with pytest.raises(Broken, match="by itself"):
        result.get(timeout=60)
    _all_interrupted(ledger, [point])
    ledger.wait_for_call("errback", 30)
    assert [call["error"] for call in ledger.calls("errback")] == ["by itself"]
    assert Agents(celery_app).status(result.id).error == "Broken: by itself"


@either_way
@pytest.mark.parametrize("point", ["before release", "after release"])
@pytest.mark.usefixtures("celery_app")
def test_a_limit_while_a_retry_is_published_leaves_it_a_retry(
    start_worker: StartWorker, ledger: Ledger, point: str
) -> None:
    start_worker()
    result = fail_once.apply_async((point,), link_error=note_failure.s())

    assert result.get(timeout=60) == 1
    _all_interrupted(ledger, [point])
    assert ledger.calls("errback") == []


@pytest.mark.usefixtures("celery_app")
def test_a_plain_task_that_follows_an_agent_keeps_its_own_limit(
    start_worker: StartWorker, ledger: Ledger
) -> None:
    start_worker()
    assert count.delay("never").get(timeout=60) == 3

    ledger.hold("plain")
    with pytest.raises(SoftTimeLimitExceeded):
        plain.apply_async(soft_time_limit=1).get(timeout=60)


class TestASlowStore:
    """Celery's own limit applies, not a signal that the test sends."""

    @pytest.fixture
    def configuration(self, configuration: Configuration, other_server: Valkey) -> Configuration:
        return replace(configuration, store_url=other_server.url_of(STORE_DB))

    @either_way
    @pytest.mark.usefixtures("celery_app")
    def test_a_limit_while_the_store_does_not_answer_does_not_fail_the_run(
        self, start_worker: StartWorker, ledger: Ledger, other_server: Valkey
    ) -> None:
        worker = start_worker()
        ledger.hold("plain")
        plain.delay()
        ledger.wait_for_call("plain", 30)
        result = count.apply_async(("never",), soft_time_limit=1, link_error=note_failure.s())

        other_server.signal(signal.SIGSTOP)
        ledger.let_go()
        until(lambda: "Soft time limit (1s) exceeded" in worker.log(), 60, "the limit is reached")
        other_server.signal(signal.SIGCONT)

        assert result.get(timeout=120) == 3
        assert ledger.calls("errback") == []
