"""Bodies that do what few bodies do: none of it is lost silently."""

from __future__ import annotations

import pytest
from kombu.exceptions import EncodeError

from celery_ckpt import Agents, CheckpointEvent, Message
from celery_ckpt.errors import NotJson, RunMisused, RunStalled, StepChanged
from celery_ckpt.records import RunStatus
from tests.support.tasks.unusual_bodies import (
    answers_only_the_second_call,
    ends_its_process,
    exits,
    factorial,
    fails_if_changed,
    fails_in_an_except,
    fails_speechless,
    in_threads,
    inner,
    interrupted,
    keeps_a_non_json_value,
    outer,
    reports_progress,
    retries_by_itself,
    retries_with_an_unserializable_argument,
    returns_an_unserializable_value,
    wants_no_checkpoints,
)
from tests.support.wait import until
from tests.support.workers.site import Site

SITE = {"include": ("tests.support.tasks.unusual_bodies",), "conf": {"ckpt_lease_ttl": 3}}


def test_tools_in_threads_of_the_body_are_checkpointed_like_others(site: Site) -> None:
    result = in_threads.delay(2)

    assert result.get(timeout=60) == 28
    events = [checkpoint.event for checkpoint in Agents(site.app).history(result.id)]
    assert events.count(CheckpointEvent.TOOL_CALL_COMPLETE) == 6


def test_an_agent_without_checkpoints_has_none_at_its_end_either(site: Site) -> None:
    result = wants_no_checkpoints.delay()

    assert result.get(timeout=60) == 1
    assert Agents(site.app).history(result.id) == []


def test_a_result_held_for_an_earlier_call_is_in_the_last_checkpoint(site: Site) -> None:
    result = answers_only_the_second_call.delay()

    assert result.get(timeout=60) == 4
    latest = Agents(site.app).latest(result.id)
    assert latest is not None
    assert latest.conversation.messages[-1] == Message.tool("4", "c2")


def test_a_body_that_calls_itself_gets_a_result_and_separate_runs_get_separate_keys(
    site: Site,
) -> None:
    result = factorial.delay(4)

    product, keys = result.get(timeout=60)

    assert product == 24
    assert len(set(keys)) == 4
    assert site.app.backend.get_state(result.id) == "SUCCESS"


def test_two_direct_calls_are_two_runs() -> None:
    [_, [one]], [_, [other]] = factorial(1), factorial(1)
    assert one != other


def test_the_error_of_an_async_agent_called_on_the_loop_says_what_to_do_and_the_loop_continues(
    site: Site,
) -> None:
    with pytest.raises(RunMisused, match=r"Use `await asyncio\.to_thread"):
        outer.delay(1, "on the loop").get(timeout=60)

    assert outer.delay(1, "in a thread").get(timeout=60) == 2


def test_an_async_body_that_raises_system_exit_does_not_end_the_loop(site: Site) -> None:
    result = exits.delay(1)

    assert result.get(timeout=60) == 2
    assert inner.delay(1).get(timeout=60) == 2


def test_an_attempt_that_reports_a_retry_does_not_keep_its_lease(site: Site) -> None:
    assert retries_by_itself.delay().get(timeout=60) == 2


def test_an_error_without_a_message_is_a_failure_like_any_other(site: Site) -> None:
    result = fails_speechless.delay()

    until(result.failed, 30, "the failure")
    status = Agents(site.app).status(result.id)
    assert (status.status, status.error) == (RunStatus.FAILED, "Speechless")


def test_a_result_that_celery_cannot_serialize_is_recorded_as_a_failure(site: Site) -> None:
    result = returns_an_unserializable_value.delay()

    with pytest.raises(EncodeError, match="not JSON serializable"):
        result.get(timeout=60)
    status = Agents(site.app).status(result.id)
    assert (status.status, "EncodeError" in str(status.error)) == (RunStatus.FAILED, True)


@pytest.mark.parametrize("what", ["state", "metadata"])
def test_state_that_json_cannot_represent_fails_immediately(site: Site, what: str) -> None:
    """The run used to be retried, and the caller got the error without its text."""
    result = keeps_a_non_json_value.delay(what)

    with pytest.raises(NotJson, match=rf"{what}\.when is of type datetime\.datetime"):
        result.get(timeout=60)
    assert Agents(site.app).runs(result.id)[0].attempts == 1


def test_a_changed_step_fails_the_run_immediately_if_configured(site: Site) -> None:
    result = fails_if_changed.delay()

    with pytest.raises(StepChanged, match="'name'"):
        result.get(timeout=60)
    assert len(site.ledger.notes(result.id, "begin")) == 2


@pytest.mark.parametrize(
    ("policy", "roles", "is_open"),
    [
        ("leave", ["user", "assistant"], 1),
        ("answer", ["user", "assistant", "tool"], 0),
        ("take_back", ["user"], 0),
    ],
)
def test_a_resumed_body_finds_open_calls_as_its_task_configures(
    site: Site, policy: str, roles: list[str], is_open: int
) -> None:
    assert interrupted[policy].delay().get(timeout=60) == [roles, is_open]


def test_a_retry_that_cannot_be_published_is_a_failure(site: Site) -> None:
    """The run used to be recorded as a success, and the caller got no result."""
    result = retries_with_an_unserializable_argument.delay()

    with pytest.raises(EncodeError, match="not JSON serializable"):
        result.get(timeout=60)
    assert Agents(site.app).status(result.id).status is RunStatus.FAILED


def test_a_traceback_includes_the_error_being_handled(site: Site) -> None:
    result = fails_in_an_except.delay()

    with pytest.raises(ValueError, match="the second error"):
        result.get(timeout=60)
    assert "the first error" in str(result.traceback)


def test_a_cancelled_run_whose_body_reports_progress_stays_cancelled(site: Site) -> None:
    """The last state that the body had reported used to remain the state of the result forever."""
    site.ledger.hold("working 1")
    result = reports_progress.delay()
    site.ledger.wait_for_call("working 1", 10, result.id)
    Agents(site.app).cancel(result.id)
    site.ledger.let_go()

    site.ledger.wait_for(lambda note: (note.run_id, note.what) == (result.id, "progress"), 10)
    until(lambda: site.app.backend.get_state(result.id) == "REVOKED", 10, "the outcome is stored again")


def test_a_run_whose_body_always_ends_its_process_is_stopped(site: Site) -> None:
    result = ends_its_process.delay()

    with pytest.raises(RunStalled, match="5 attempts"):
        result.get(timeout=60)
    assert len(site.ledger.notes(result.id, "exit")) == 5
