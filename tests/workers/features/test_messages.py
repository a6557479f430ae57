"""What an agent's message carries, and how it may end: everything as with any Celery task."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_ckpt import Agents
from celery_ckpt.errors import InvalidName
from tests.support.ledger import names
from tests.support.tasks.canvas import (
    ask,
    ask_often,
    bound,
    bound_async,
    climb,
    facts,
    largest,
    leave,
    silent,
    unbound,
    values,
)
from tests.support.wait import until
from tests.support.workers.processes import FAST
from tests.support.workers.site import Site

SITE = {
    "include": ("tests.support.tasks.canvas",),
    "conf": {
        "ckpt_lease_ttl": 10,
        "accept_content": ["json", "literals"],
        "task_routes": {"*.silent": {"queue": "quiet"}, "*.largest": {"serializer": "literals"}},
    },
    "worker": {"options": (*FAST, "-Q", "celery,other,quiet")},
}


def has_status(site: Site, agent_id: str, status: str) -> None:
    agents = Agents(site.app)
    until(lambda: agents.status(agent_id).status == status, 10, f"{agent_id} is {status}")


@pytest.mark.parametrize("task", [bound, bound_async], ids=["sync", "async"])
def test_the_base_class_works_the_same_with_plain_celery_syntax(site: Site, task: Any) -> None:
    assert task.delay(3).get(timeout=60) == [6, True, True]


def test_an_unbound_body_finds_its_run(site: Site) -> None:
    assert unbound.delay(1).get(timeout=60) == 2


def test_models_are_validated_and_dumped(site: Site) -> None:
    result = ask.delay({"text": "why", "asked": "2026-01-02"})
    assert result.get(timeout=60) == {"text": "WHY", "length": 2026}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("uuid", uuid.UUID(int=7)),
        ("tuple", [1, [2, 3]]),
        ("none", None),
    ],
)
def test_a_result_is_serialized_as_celery_would(site: Site, kind: str, value: Any) -> None:
    result = values.delay(kind)

    assert result.get(timeout=60) == value
    has_status(site, result.id, "succeeded")


def test_a_task_uses_the_queue_and_priority_it_is_given(site: Site) -> None:
    seen = facts.apply_async(queue="other", priority=3).get(timeout=60)

    assert (seen["queue"], seen["priority"]) == ("other", 3)


def test_a_hand_off_is_published_to_the_same_queue(site: Site) -> None:
    result = climb.apply_async((1,), queue="other", priority=3)

    assert result.get(timeout=60) == 4
    assert len(site.ledger.bodies(result.id)) == 3
    envelope = record(site, result.id).envelope
    assert (envelope["routing_key"], envelope["properties"]["priority"]) == ("other", 3)


@pytest.mark.parametrize("option", [{}, {"compression": "gzip"}], ids=["plain", "compressed"])
def test_models_queue_and_priority_are_preserved_across_hand_offs_and_retries(
    site: Site, option: dict[str, Any]
) -> None:
    question = {"text": "why", "asked": "2026-01-02"}
    result = ask_often.apply_async((question, 3), queue="other", priority=6, **option)

    assert result.get(timeout=60) == {"text": "why", "length": 3}
    calls = site.ledger.calls(run_id=result.id)
    assert names(calls) == ["time 1", "time 2", "time 2", "time 3"]
    assert [call["seen"] for call in calls] == [["Question", "other", 6]] * 4


def record(site: Site, run_id: str) -> Any:
    from celery_ckpt.runtime.process.context import AppContext

    return AppContext.of(site.app).store.run(run_id, run_id)


@pytest.mark.parametrize("option", ["countdown", "eta"])
def test_a_task_waits_for_its_eta_and_its_hand_offs_do_not(site: Site, option: str) -> None:
    seconds = 2.0
    when = seconds if option == "countdown" else datetime.now(UTC) + timedelta(seconds=seconds)
    sent = site.ledger.note("", "sent").at

    result = climb.apply_async((1,), **{option: when})

    assert result.get(timeout=60) == 4
    begins = [note.at - sent for note in site.ledger.notes(result.id, "begin")]
    assert begins[0] >= 0.9 * seconds
    assert begins[-1] - begins[0] < seconds * (len(begins) - 1)


def test_an_expired_task_is_revoked_and_recorded_as_cancelled(site: Site) -> None:
    result = climb.apply_async((1,), expires=datetime.now(UTC) - timedelta(seconds=1))

    until(lambda: result.state == "REVOKED", 10, "it is revoked")
    has_status(site, result.id, "cancelled")
    assert site.ledger.bodies(result.id) == []


def test_a_task_that_started_in_time_does_not_expire_during_a_hand_off(site: Site) -> None:
    site.ledger.hold("floor 2")
    result = climb.apply_async((1,), expires=datetime.now(UTC) + timedelta(seconds=3))
    sent = time.monotonic()
    site.ledger.wait_for_call("floor 2", 10, result.id)
    until(lambda: time.monotonic() - sent > 3.5, 10, "it has expired")
    site.ledger.let_go()

    assert result.get(timeout=60) == 4


def test_an_ignored_result_is_not_stored(site: Site) -> None:
    result = silent.delay()

    site.ledger.wait_for_call("floor 2", 10, result.id)
    has_status(site, result.id, "succeeded")
    assert site.app.AsyncResult(result.id).state == "PENDING"
    assert record(site, result.id).envelope["routing_key"] == "quiet"


@pytest.mark.parametrize(
    ("how", "status", "state"), [("ignore", "succeeded", "STARTED"), ("reject", "failed", "FAILURE")]
)
def test_a_run_that_ends_through_a_celery_exception_is_settled(
    site: Site, how: str, status: str, state: str
) -> None:
    result = leave.delay(how)

    site.ledger.wait_for_call("floor 2", 10, result.id)
    has_status(site, result.id, status)
    until(lambda: record(site, result.id).is_settled, 10, "it is settled")
    assert names(site.ledger.calls(run_id=result.id)) == ["floor 1", "floor 2"]
    until(lambda: site.app.AsyncResult(result.id).state == state, 5, f"it is {state}")


def app_without_agents(site: Site) -> Celery:
    """Return an app that has no agent tasks."""
    urls = {"broker": site.configuration.broker_url, "backend": site.configuration.backend_url}
    stranger = Celery("stranger", **urls, set_as_current=False)
    for task in (climb, largest):
        stranger.tasks.pop(task.name, None)
    return stranger


@pytest.mark.parametrize("task", ["facts", "climb"])
def test_an_app_without_agents_can_send_one_by_name(site: Site, task: str) -> None:
    stranger = app_without_agents(site)
    args = () if task == "facts" else (1,)
    result: AsyncResult = stranger.send_task(
        f"tests.support.tasks.canvas.{task}", args, headers={"ckpt_agent_id": f"by name {task}"}
    )

    value = site.app.AsyncResult(result.id).get(timeout=60)

    assert value == 4 if task == "climb" else value["agent"] == "by name facts"
    status = Agents(site.app).status(f"by name {task}")
    assert (status.run_id, status.attempts) == (result.id, 3 if task == "climb" else 1)
    stranger.close()


@pytest.mark.parametrize("name", ["", "x" * 513])
def test_an_invalid_agent_name_is_refused(site: Site, name: str) -> None:
    with pytest.raises(InvalidName):
        facts.apply_async(agent_id=name)


@pytest.mark.parametrize("option", [{"headers": {"ckpt_agent_id": "x" * 513}}, {"task_id": "x" * 513}])
def test_the_error_about_an_invalid_name_reaches_a_sender_by_name(
    site: Site, option: dict[str, Any]
) -> None:
    """The caller used to get a pydantic error without its text."""
    with pytest.raises(InvalidName, match="has 513 characters"):
        facts.apply_async(**option)
    result = site.app.send_task(facts.name, **option)
    with pytest.raises(InvalidName, match="has 513 characters"):
        result.get(timeout=60)


@pytest.mark.parametrize(
    "option", [{}, {"serializer": "literals"}], ids=["by its route", "by an option"]
)
def test_a_message_that_json_cannot_represent_is_kept_as_published(
    site: Site, option: dict[str, Any]
) -> None:
    """Celery asks a route for the serializer only if it does not know the task."""
    stranger = app_without_agents(site)
    stranger.conf.task_routes = site.app.conf.task_routes
    sent = stranger.send_task(largest.name, ({1, 3, 2},), **option)
    result = site.app.AsyncResult(sent.id)
    stranger.close()

    assert result.get(timeout=60) == 3
    run = Agents(site.app).store.run(result.id, result.id)
    assert run is not None
    assert run.envelope["content_type"] == "application/x-literals"
