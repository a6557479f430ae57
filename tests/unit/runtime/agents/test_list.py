"""``Agents.list``: pages, filters, and agents that cannot be read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery

from celery_ckpt import Agents
from celery_ckpt.errors import StoreError
from celery_ckpt.runtime.agents import AgentList
from celery_ckpt.testing import make_checkpoint, make_run
from celery_ckpt.transfer.exporter import export_agents
from celery_ckpt.transfer.importer import import_agents

NAMES = [f"agent-{number}" for number in range(9)]
EVEN = NAMES[::-2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def agents_at(path: Path) -> Agents:
    app = Celery(set_as_current=False)
    app.conf.ckpt_store_url = f"sqlite:///{path}"
    return Agents(app)


@pytest.fixture
def agents(path: Path) -> Agents:
    agents = agents_at(path)
    for number, name in enumerate(NAMES):
        agents.store.add_run(make_run(name, "run", task="even" if number % 2 == 0 else "odd"))
    return agents


def names(found: AgentList) -> list[str]:
    return [one.agent_id for one in found]


def test_it_is_a_list_of_all_agents_the_newest_first(agents: Agents) -> None:
    found = agents.list()
    assert isinstance(found, list)
    assert (names(found), found.after, found.unreadable) == (NAMES[::-1], None, {})
    assert found[0] == agents.status(NAMES[-1])


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_of_a_filtered_list_continue_where_the_last_one_ended(agents: Agents, limit: int) -> None:
    found, after = list[str](), None
    while True:
        page = agents.list("queued", task="even", limit=limit, after=after)
        assert len(page) <= limit
        found += names(page)
        after = page.after
        if after is None:
            break
    assert found == EVEN


def test_a_list_of_none_continues_at_its_beginning(agents: Agents) -> None:
    first = agents.list(limit=2)
    assert names(agents.list(limit=0)) == []
    assert agents.list(limit=0, after=first.after).after == first.after


def test_names_and_statuses_select_agents(agents: Agents) -> None:
    agents.store.save(make_checkpoint("new"))
    assert names(agents.list("idle")) == names(agents.list(prefix="n")) == ["new"]
    assert names(agents.list(prefix="agent-3", task="odd")) == ["agent-3"]
    assert agents.list(prefix="agent-3", task="even") == agents.list("running") == []


def test_an_agent_that_cannot_be_read_does_not_hide_the_others(agents: Agents, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        damage = "UPDATE ckpt_runs SET outline = x'00' WHERE agent = 4"
        connection.execute(damage)
    found = agents.list()
    assert names(found) == [name for name in NAMES[::-1] if name != "agent-3"]
    assert found.unreadable.keys() == {"agent-3"}
    assert "damaged" in str(found.unreadable["agent-3"])
    with pytest.raises(StoreError, match="damaged"):
        agents.status("agent-3")


def test_imported_and_forked_agents_are_listed(agents: Agents, tmp_path: Path) -> None:
    checkpoint = make_checkpoint("saved")
    agents.store.save(checkpoint)
    agents.fork(checkpoint.id, "forked")
    assert names(agents.list("idle")) == ["forked", "saved"]
    other = agents_at(tmp_path / "other.db")
    lines = list(export_agents(agents.store, [*NAMES, "forked"]))
    assert all(one.error is None for one in import_agents(other.store, lines))
    assert names(other.list()) == ["forked", *NAMES[::-1]]
    assert names(other.list("idle")) == ["forked"]
