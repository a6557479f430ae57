from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_kit import checkpoint, every_verb, work
from servers import Valkey

from celery_ckpt import CheckpointStore, open_store
from celery_ckpt.errors import ConfigurationError

USERS = """
user app on >pw ~myapp:* &* +@all -@dangerous
user reader on >pw ~myapp:* &* +@all -hset
user nobody on >pw ~myapp:* &* +@all -@scripting
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("acl"), config=USERS) as server:
        yield server


def opened(server: Valkey, user: str, prefix: str = "myapp:") -> CheckpointStore:
    return open_store(server.url.replace("//", f"//{user}:pw@"), key_prefix=prefix)


def test_a_user_who_has_only_the_prefix_can_do_everything(server: Valkey) -> None:
    with opened(server, "app") as store:
        work(store, "stays", 1)
        every_verb(store, "agent {with} braces")
    with server.client() as client:
        assert all(key.startswith(b"myapp:") for key in client.scan_iter())


def test_a_user_who_may_not_ask_for_the_configuration_is_warned_of(server: Valkey) -> None:
    with opened(server, "app") as store:
        [risk] = store.risks()
    assert "cannot be read" in risk


@pytest.mark.parametrize(
    ("user", "prefix"), [("app", "ckpt:"), ("reader", "myapp:"), ("nobody", "myapp:")]
)
def test_a_user_who_lacks_a_permission_is_told_so(server: Valkey, user: str, prefix: str) -> None:
    with opened(server, user, prefix) as store:
        with pytest.raises(ConfigurationError, match="lacks a permission"):
            store.save(checkpoint("agent"))
        with pytest.raises(ConfigurationError, match="lacks a permission"):
            store.acquire("agent", "me", 30)


def test_stores_with_different_prefixes_do_not_meet(server: Valkey) -> None:
    with opened(server, "app", "myapp:1:") as first, opened(server, "app", "myapp:2:") as second:
        [saved] = work(first, "agent", 1)
        assert second.load_latest("agent") is None
        assert second.load(saved.id) is None
        assert list(second.agents()) == []
        assert second.delete("agent") == 0
        assert first.load_latest("agent") == saved
