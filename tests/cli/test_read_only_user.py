"""Reading commands, as a Redis user with the read-only rules from the docs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_ckpt import open_store
from celery_ckpt.clock import system_clock
from celery_ckpt.event_log import LogEntry
from tests.support.cli import Commands, add_agent, commands_for
from tests.support.servers.acl import as_user, documented_rules, forget_refusals, refusals
from tests.support.servers.valkey import Valkey


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("acl"), config=documented_rules("store.acl")) as server:
        yield server


@pytest.fixture(scope="module")
def ids(server: Valkey) -> list[str]:
    with open_store(as_user(server, "worker"), key_prefix="research:") as store:
        ids = add_agent(store)
        data = {"run_id": "run-of-user-42", "call": "llm", "name": "ask_the_model", "took": 5}
        store.note("user-42", [LogEntry("call", system_clock.now(), data)])
        return ids


@pytest.fixture
def reader(server: Valkey, ids: list[str]) -> Commands:
    forget_refusals(server)
    return commands_for(as_user(server, "dashboard"), ckpt_key_prefix="research:")


def test_a_read_only_user_can_read_everything(reader: Commands, server: Valkey, ids: list[str]) -> None:
    assert "user-42" in reader("list").output
    assert "Why is the sky blue?" in reader("show", "user-42").output
    assert "ask_the_model" in reader("show", "user-42", "--timeline").output
    assert "asked" in reader("diff", ids[0], ids[1], code=1).output
    assert ids[-1] in reader("tail", "user-42", "--json", code=1).output  # its run has failed
    assert "user-42" in reader("export", "user-42").output
    assert refusals(server) == []


@pytest.mark.parametrize(
    "command", [("delete", "user-42", "--yes"), ("prune", "user-42", "--keep", "1")]
)
def test_a_write_names_the_missing_permission(reader: Commands, command: tuple[str, ...]) -> None:
    line = reader.fails(*command, code=78)
    assert "User dashboard has no permissions to run the '" in line
