"""Celery events: a worker with -E sends events about agents to monitors, a worker without it
sends none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.events.state import State

from tests.support.tasks.signal_log import changing, emits_events, overtaken, without_a_store
from tests.support.wait import until
from tests.support.workers.fixtures import StartWorker
from tests.support.workers.monitor import collect_events
from tests.support.workers.processes import FAST, Pool

pytestmark = pytest.mark.configured(
    include=("tests.support.tasks.signal_log",), conf={"ckpt_lease_ttl": 10}
)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_with_events_enabled_emits_agent_events(
    celery_app: Celery, start_worker: StartWorker, pool: Pool
) -> None:
    start_worker(pool=pool, options=(*FAST, "-E"))
    with collect_events(celery_app) as collected:
        result = emits_events.apply_async((3,), agent_id="monitored")
        assert result.get(timeout=60) == 3
        # The worker's parent sends the event after the result is stored.
        until(
            lambda: collected.kinds("task", result.id)[-1:] == ["task-succeeded"],
            10,
            "the event is sent",
        )
        events, of_tasks = collected.saw("agent", result.id), collected.saw("task", result.id)

    kinds = [event["type"] for event in events]
    assert kinds[0] == "agent-started"
    assert kinds[-1] == "agent-finished"
    assert kinds.count("agent-checkpoint") == 6
    assert [kind for kind in kinds if kind != "agent-checkpoint"][1:3] == [
        "agent-handed-off",
        "agent-resumed",
    ]
    assert {event["agent_id"] for event in events} == {"monitored"}
    first, last = events[0], events[-1]
    assert (first["attempt"], first["iteration"], first["status"]) == (1, 0, "running")
    assert (last["attempt"], last["iteration"], last["status"]) == (2, 3, "succeeded")
    assert not any("yes" in str(event) for event in events), "no message of a conversation"
    assert state_from([*of_tasks, *events], result.id) == state_from(of_tasks, result.id) == "SUCCESS"


def test_a_worker_with_events_enabled_emits_problem_events(
    celery_app: Celery, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker(pool="threads", options=(*FAST, "-E"))
    with collect_events(celery_app) as collected:
        # One after the other: for the second agent, the store is unavailable in the whole worker.
        changed = changing.delay(str(tmp_path / "marker"))
        assert changed.get(timeout=60) == "NEW"
        missed = without_a_store.delay()
        assert missed.get(timeout=60) == "done"
        lost = overtaken.delay()
        until(lambda: "agent-lease-lost" in collected.kinds("agent", lost.id), 10, "the event is sent")
        collected.catch_up()

    assert "agent-step-changed" in collected.kinds("agent", changed.id)
    assert "agent-checkpoint-failed" in collected.kinds("agent", missed.id)


def state_from(events: list[dict[str, Any]], run_id: str) -> str:
    """Return the state that monitors derive from the events."""
    state = State()
    for event in sorted(events, key=lambda event: event["timestamp"]):
        state.event(event)
    return str(state.tasks[run_id].state)


def test_a_worker_with_events_disabled_emits_nothing(
    celery_app: Celery, start_worker: StartWorker
) -> None:
    start_worker(pool="threads")
    with collect_events(celery_app) as collected:
        assert emits_events.delay(3).get(timeout=60) == 3
        collected.catch_up()

        assert collected.saw("agent") == []
