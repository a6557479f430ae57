"""Agent tasks in Celery's canvas: chains, groups and chords do not notice hand-offs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import chain, chord, group
from celery.result import AsyncResult

from tests.support.ledger import names
from tests.support.tasks.canvas import (
    aclimb,
    climb,
    collect,
    double,
    fall,
    gather,
    note,
    note_failure,
    replaced,
)
from tests.support.wait import until
from tests.support.workers.site import Site

SITE = {"include": ("tests.support.tasks.canvas",), "conf": {"ckpt_lease_ttl": 10}}

#: Each floor once.
FLOORS = ["floor 1", "floor 2", "floor 3"]


def chain_of(result: AsyncResult) -> list[AsyncResult]:
    """Return the results of a chain, the first one first."""
    found = [result]
    while found[0].parent:
        found.insert(0, found[0].parent)
    return found


@pytest.mark.parametrize(
    ("tasks", "outcome"),
    [
        (lambda: (climb.s(1), double.s(), double.s()), 16),
        (lambda: (double.s(1), climb.s(), double.s()), 10),
        (lambda: (double.s(1), double.s(), climb.s()), 7),
        (lambda: (climb.s(1), climb.s(), aclimb.s()), 10),
    ],
    ids=["first", "middle", "last", "all"],
)
def test_a_chain_continues_once_after_an_agent_that_was_handed_off(
    site: Site, tasks: Callable[[], tuple[object, ...]], outcome: int
) -> None:
    result = chain(*tasks()).apply_async()

    assert result.get(timeout=60) == outcome
    root = chain_of(result)[0].id
    assert len(site.ledger.calls("double", root)) == sum("double" in str(task) for task in tasks())
    for part in chain_of(result):
        if climbed := site.ledger.calls(run_id=part.id):
            assert [name for name in names(climbed) if name != "double"] in (FLOORS, [])


def test_an_immutable_signature_ignores_the_previous_result(site: Site) -> None:
    assert chain(double.s(21), climb.si(1, floors=1)).delay().get(timeout=60) == 2


def test_a_partial_signature_accepts_options_and_the_agent_name(site: Site) -> None:
    signature = climb.s(floors=2).set(agent_id="climber", countdown=0)

    assert signature.delay(5).get(timeout=60) == 7
    assert signature.clone((9,)).apply_async().get(timeout=60) == 9, "from its last checkpoint"


def test_a_group_of_agents_returns_all_results_in_order(site: Site) -> None:
    result = group(climb.s(n) for n in range(4)).apply_async()

    assert result.get(timeout=60) == [3, 4, 5, 6]
    assert [names(site.ledger.calls(run_id=one.id)) for one in result] == [FLOORS] * 4


def test_a_chord_body_runs_once_with_the_results_of_its_header_agents(site: Site) -> None:
    result = chord([climb.s(n, floors=2) for n in range(3)], collect.s()).apply_async()

    assert result.get(timeout=60) == [2, 3, 4]


def test_an_agent_can_be_the_body_of_a_chord(site: Site) -> None:
    result = chord([climb.s(0, floors=2), double.s(2), aclimb.s(5)], gather.s()).apply_async()

    assert result.get(timeout=60) == 2 + 4 + 8
    assert len(site.ledger.calls("gather", result.id)) == 1


def test_a_chord_whose_agent_fails_fails(site: Site) -> None:
    result = chord([climb.s(0, floors=2), fall.s()], gather.s()).apply_async()

    with pytest.raises(Exception, match="fell"):
        result.get(timeout=60)
    assert site.ledger.calls("gather", result.id) == []


def test_a_link_is_called_once_with_the_result(site: Site) -> None:
    result = climb.apply_async((1,), link=note.s("link of climb"))

    assert result.get(timeout=60) == 4
    assert site.ledger.wait_for_call("linked", 10, "link of climb")["value"] == 4
    settled(site, result)
    assert len(site.ledger.calls("linked", "link of climb")) == 1


def test_an_errback_is_called_once_after_the_last_retry(site: Site) -> None:
    result = fall.apply_async(link_error=note_failure.s())

    with pytest.raises(RuntimeError, match="fell"):
        result.get(timeout=60)
    assert site.ledger.wait_for_call("errback", 10, result.id)["error"] == "fell"
    settled(site, result)
    assert len(site.ledger.calls("errback", result.id)) == 1
    assert [call["retries"] for call in site.ledger.calls("attempt", result.id)] == [0, 0, 1]


def test_a_plain_task_can_replace_an_agent(site: Site) -> None:
    result = chain(replaced.s("double", 4), double.s()).apply_async()

    assert result.get(timeout=60) == 16
    agent = chain_of(result)[0]
    assert names(site.ledger.calls(run_id=agent.id)) == ["before 1", "before 2", "double", "double"]
    settled(site, agent)


@pytest.mark.parametrize("agent_id", [None, "placeholder"])
@pytest.mark.parametrize("by", ["climb", "chain", "replaced"])
def test_another_agent_can_replace_an_agent(site: Site, by: str, agent_id: str | None) -> None:
    result = chain(replaced.s(by, 4).set(agent_id=agent_id), double.s()).apply_async()

    assert result.get(timeout=60) == 14
    agent = chain_of(result)[0]
    before = ["before 1", "before 2"] * (2 if by == "replaced" else 1)
    made = [name for name in names(site.ledger.calls(run_id=agent.id)) if name != "double"]
    assert made == [*before, *FLOORS]
    settled(site, agent, agent_id)


def settled(site: Site, result: AsyncResult, agent_id: str | None = None) -> None:
    """Wait until the run of an agent is settled."""
    from celery_ckpt.runtime.process.context import AppContext

    store = AppContext.of(site.app).store
    until(lambda: not store.activity(agent_id or result.id).open, 10, "the run is settled")
