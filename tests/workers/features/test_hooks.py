"""Hooks of a custom task class: even if a hook fails, the run ends like that of any task, and
only once.
"""

from __future__ import annotations

import pytest
from celery.result import AsyncResult

from celery_ckpt import Agents
from celery_ckpt.records import RunRecord, RunStatus
from tests.support.ledger import VARIABLE
from tests.support.tasks.canvas import note_failure
from tests.support.tasks.hooks import hooked
from tests.support.wait import until
from tests.support.workers.site import Site

SITE = {
    "include": ("tests.support.tasks.canvas", "tests.support.tasks.hooks"),
    "conf": {"ckpt_lease_ttl": 10},
}


def settled(site: Site, result: AsyncResult) -> RunRecord:
    """Wait until no process will requeue the run; return its record."""

    def is_settled() -> bool:
        return Agents(site.app).runs(result.id)[0].is_settled

    until(is_settled, 8, "the run is settled, long before a watchdog would requeue it")
    return Agents(site.app).runs(result.id)[0]


@pytest.mark.parametrize("fails", ["", "on_success"])
def test_a_successful_run_stays_ended_whatever_its_hook_does(site: Site, fails: str) -> None:
    result = hooked.delay(fails=fails)

    assert result.get(timeout=60) == 7
    assert settled(site, result).status is RunStatus.SUCCEEDED
    assert len(site.ledger.notes(result.id, "before_start")) == 2, "at each delivery"
    assert len(site.ledger.notes(result.id, "on_success")) == 1


def test_a_failed_run_stays_ended_whatever_its_hook_does(site: Site) -> None:
    """The run used to be requeued again and again, and each time the errbacks were called."""
    result = hooked.apply_async(kwargs={"fails": "on_failure"}, link_error=note_failure.s())

    until(result.failed, 30, "the failure")
    record = settled(site, result)
    assert (record.status, record.error) == (RunStatus.FAILED, "ValueError: the body has failed")


def test_a_run_whose_before_start_hook_raises_fails_once_and_is_not_requeued(site: Site) -> None:
    """Only Celery knew of the failure: a watchdog requeued the run again and again, and each
    time the errbacks were called.
    """
    result = hooked.apply_async(kwargs={"fails": "before_start"}, link_error=note_failure.s())

    with pytest.raises(RuntimeError, match="before_start has failed"):
        result.get(timeout=60)
    record = settled(site, result)
    assert (record.status, record.error) == (RunStatus.FAILED, "RuntimeError: before_start has failed")
    site.ledger.wait_for_call("errback", 10, result.id)
    assert [note.what for note in site.ledger.notes(result.id)].count("before_start") == 1
    assert len(site.ledger.notes(result.id, "on_failure")) == 1


def test_an_eager_run_whose_before_start_hook_raises_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(site.ledger.path))
    result = hooked.apply(kwargs={"fails": "before_start"})

    with pytest.raises(RuntimeError, match="before_start has failed"):
        result.get()
