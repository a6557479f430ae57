"""Redis users with few rights: the documented ones suffice, and an error names what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_ckpt import CheckpointStore, open_store
from celery_ckpt.errors import ConfigurationError
from celery_ckpt.records import Schedule
from tests.support.redis_agents import call_every_method, checkpoint, run, step, work
from tests.support.servers.acl import as_user, documented_rules, refusals
from tests.support.servers.valkey import Valkey, is_before
from tests.support.stored_bytes import content_of_keys

USERS = """
user app on >pw ~myapp:* &* +@all -@dangerous
user reader on >pw ~myapp:* &* +@all -hset
user noscript on >pw ~myapp:* &* +@all -@scripting
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("acl"), config=USERS) as server:
        yield server


def opened(server: Valkey, user: str, prefix: str = "myapp:") -> CheckpointStore:
    return open_store(server.url.replace("//", f"//{user}:pw@"), key_prefix=prefix)


def test_a_user_limited_to_the_prefix_can_do_everything(server: Valkey) -> None:
    with opened(server, "app") as store:
        work(store, "stays", 1)
        call_every_method(store, "agent {with} braces")
    with server.client() as client:
        assert all(key.startswith(b"myapp:") for key in client.scan_iter())


def test_a_user_without_access_to_the_configuration_is_reported_as_a_risk(server: Valkey) -> None:
    with opened(server, "app") as store:
        [risk] = store.risks()
    assert "cannot be read" in risk


@pytest.mark.parametrize(
    ("user", "prefix"), [("app", "ckpt:"), ("reader", "myapp:"), ("noscript", "myapp:")]
)
def test_a_missing_permission_is_named_in_the_error(server: Valkey, user: str, prefix: str) -> None:
    with opened(server, user, prefix) as store:
        with pytest.raises(ConfigurationError, match="lacks a permission"):
            store.save(checkpoint("agent"))
        with pytest.raises(ConfigurationError, match="lacks a permission"):
            store.acquire("agent", "me", 30)


def test_stores_with_different_prefixes_are_isolated(server: Valkey) -> None:
    with opened(server, "app", "myapp:1:") as first, opened(server, "app", "myapp:2:") as second:
        [saved] = work(first, "agent", 1)
        assert second.load_latest("agent") is None
        assert second.load(saved.id) is None
        assert list(second.agents()) == []
        assert second.delete("agent") == 0
        assert first.load_latest("agent") == saved


# -- the roles of docs/howto/restrict-redis-users.md -----------------------------------------------

READS: dict[str, Callable[[CheckpointStore], Any]] = {
    "agents": lambda store: list(store.agents()),
    "latest": lambda store: store.load_latest("agent"),
    "load": lambda store: store.load(store.history("agent")[0].id),
    "list": lambda store: store.list("agent"),
    "history": lambda store: store.history("agent"),
    "runs": lambda store: store.runs("agent"),
    "run": lambda store: store.run("agent", "run-1"),
    "steps": lambda store: store.steps("agent", "run-1"),
    "activity": lambda store: store.activity("agent").open,
    "policy": lambda store: store.policy("agent").pins,
}
WRITES: dict[str, Callable[[CheckpointStore], Any]] = {
    "save": lambda store: store.save(checkpoint("agent", 9)),
    "acquire": lambda store: store.acquire("agent", "me", 30),
    "record a step": lambda store: store.record_step(step("agent", "call-2")),
    "add a run": lambda store: store.add_run(run("agent", "run-2")),
    "update a run": lambda store: store.update_run(run("agent")),
    "start": lambda store: store.start_run(run("agent"), "me", 30),
    "cancel": lambda store: store.cancel_run("agent", "run-1", "me", 30),
    "prune": lambda store: store.prune("agent", 1),
    "pin": lambda store: store.pin(store.history("agent")[0].id, "name"),
    "schedule": lambda store: store.schedule("agent", 0),
    "claim_due": lambda store: store.claim_due(1, 30, Schedule.SWEEP),
    "delete": lambda store: store.delete("agent"),
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A server with exactly the documented users. A worker has left an agent there."""
    with Valkey(tmp_path_factory.mktemp("acl"), config=documented_rules("store.acl")) as server:
        with as_role(server, "worker") as store:
            work(store, "agent", 3)
            store.record_step(step("agent"))
            store.add_run(run("agent"), due_in=1000)
        yield server


def as_role(server: Valkey, role: str, prefix: str = "research:") -> CheckpointStore:
    return open_store(as_user(server, role), key_prefix=prefix)


def test_the_acl_rules_of_a_worker_are_sufficient_for_every_operation(strict: Valkey) -> None:
    with as_role(strict, "worker") as store:
        call_every_method(store, "another {agent}")
        assert all("append-only" in risk for risk in store.risks())
        assert list(store.findings()) == []
    lacked = {what for user, kind, what in refusals(strict) if (user, kind) == ("worker", "command")}
    # Redis 6 has one right for all of CLIENT, and it is a dangerous one. The driver works without a
    # client name.
    assert lacked <= ({"client"} if is_before(7, 0) else set())


@pytest.mark.parametrize("what", READS)
def test_a_dashboard_can_read_everything(strict: Valkey, what: str) -> None:
    with as_role(strict, "dashboard") as reader, as_role(strict, "worker") as writer:
        assert READS[what](reader) == READS[what](writer)


@pytest.fixture(scope="module")
def refusal_pattern() -> str:
    """Return the pattern of a server's refusal. Older servers do not name a command that a
    script calls.
    """
    return "permission: .* command" if is_before(7, 2) else r"User dashboard .*'\w+' command"


@pytest.mark.parametrize("what", WRITES)
def test_a_dashboard_cannot_write_and_the_error_names_the_denied_command(
    strict: Valkey, what: str, refusal_pattern: str
) -> None:
    with strict.client() as client:
        before = content_of_keys(client)
        began = time.monotonic()
        with (
            as_role(strict, "dashboard") as store,
            pytest.raises(ConfigurationError, match=refusal_pattern),
        ):
            WRITES[what](store)
        assert time.monotonic() - began < 8  # the retries take ten seconds
        assert content_of_keys(client) == before


@pytest.mark.parametrize("role", ["worker", "dashboard"])
@pytest.mark.parametrize("what", READS)
def test_no_role_can_read_under_another_prefix(strict: Valkey, role: str, what: str) -> None:
    with (
        as_role(strict, role, "other:") as store,
        pytest.raises(ConfigurationError, match=r"lacks a permission.*key"),
    ):
        READS[what](store)
