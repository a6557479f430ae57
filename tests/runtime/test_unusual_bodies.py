"""Bodies that do what few bodies do: nothing of it is lost in silence."""

from __future__ import annotations

from celery_workers.standing import Site
from celery_workers.unusual import factorial, in_threads

from celery_ckpt import Agents, CheckpointEvent

SITE = {"include": ("celery_workers.unusual",), "conf": {"ckpt_lease_ttl": 3}}


def test_tools_in_threads_of_the_body_are_checkpointed_as_others_are(site: Site) -> None:
    result = in_threads.delay(2)

    assert result.get(timeout=60) == 28
    events = [checkpoint.event for checkpoint in Agents(site.app).history(result.id)]
    assert events.count(CheckpointEvent.TOOL_CALL_COMPLETE) == 6


def test_a_body_that_calls_itself_gets_a_result_and_runs_of_their_own_get_keys_of_their_own(
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
