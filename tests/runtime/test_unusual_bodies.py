"""Bodies that do what few bodies do: nothing of it is lost in silence."""

from __future__ import annotations

from celery_workers.standing import Site
from celery_workers.unusual import in_threads

from celery_ckpt import Agents, CheckpointEvent

SITE = {"include": ("celery_workers.unusual",), "conf": {"ckpt_lease_ttl": 3}}


def test_tools_in_threads_of_the_body_are_checkpointed_as_others_are(site: Site) -> None:
    result = in_threads.delay(2)

    assert result.get(timeout=60) == 28
    events = [checkpoint.event for checkpoint in Agents(site.app).history(result.id)]
    assert events.count(CheckpointEvent.TOOL_CALL_COMPLETE) == 6
