from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trustme

from celery_ckpt import RedisCheckpointStore, open_store
from celery_ckpt.errors import ConfigurationError, StoreUnavailable
from celery_ckpt.stores.redis import connections
from tests.support.redis_agents import call_every_method
from tests.support.servers.proxies import Proxy, server_side_of
from tests.support.servers.valkey import Valkey


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_the_redis_and_valkey_schemes_both_connect(redis_url: str, scheme: str) -> None:
    with open_store(redis_url.replace("redis", scheme, 1)) as store:
        assert isinstance(store, RedisCheckpointStore)
        call_every_method(store, "agent")


def test_the_database_of_the_url_is_used(valkey: Valkey, redis_url: str) -> None:
    with open_store(redis_url.removesuffix("0") + "7") as store:
        store.acquire("agent", "me", 30)
    with valkey.client(db=7) as seventh, valkey.client(db=0) as first:
        assert seventh.dbsize()
        assert not first.dbsize()


def test_the_user_and_password_of_the_url_are_used(tmp_path: Path) -> None:
    config = "user default off\nuser me on >p@ss/word allkeys allcommands"
    with Valkey(tmp_path, config=config) as server:
        url = server.url.replace("//", "//me:p%40ss%2Fword@")
        with open_store(url) as store:
            call_every_method(store, "agent")


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_tls_works_with_the_signing_authority(
    valkey: Valkey, redis_url: str, tmp_path: Path, scheme: str
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with Proxy(valkey.port, server_side_of(authority)) as proxy:
        url = proxy.url.replace("rediss", scheme, 1)
        with open_store(f"{url}?ssl_ca_certs={tmp_path}/ca.pem") as store:
            call_every_method(store, "agent")


def test_an_unanswered_tls_handshake_is_not_retried_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HANDSHAKE_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=20) as silent:
        url = f"rediss://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=0.2"
        with open_store(url) as store, pytest.raises(StoreUnavailable, match="write redis://"):
            list(store.agents())
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it is listed once
            silent.accept()


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        "redis://host:port/0",
        "redis://host/zero",
        "redis://host/0?socket_timeout=soon",
        "redis://host/0?sokcet_timeout=5",
        "redis://[::1/0",
        "redis+sentinel://host:26379",
        "redis+sentinel://host:26379/themaster/zero",
        "redis+sentinel://host:26379/themaster/0?sokcet_timeout=5",
        "redis+sentinel://,/themaster",
        "redis+cluster://host,/",
        "redis+cluster://",
        "redis+carrier://host",
        "http://host",
    ],
)
def test_an_invalid_url_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError):
        RedisCheckpointStore.from_url(url)


def test_an_unknown_option_is_named(redis_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'bogus' is not an option of redis-py's connect"):
        RedisCheckpointStore.from_url(f"{redis_url}?bogus=1")


@pytest.mark.parametrize(
    ("scheme", "path", "message"),
    [
        ("redis", "/99", "Name another database"),
        ("redis+cluster", "", "Write redis://"),
        ("redis+sentinel", "/themaster", "a Sentinel for"),
    ],
)
def test_a_url_that_does_not_fit_its_server_is_a_configuration_error(
    valkey: Valkey, scheme: str, path: str, message: str
) -> None:
    url = f"{scheme}://127.0.0.1:{valkey.port}{path}"
    with pytest.raises(ConfigurationError, match=message), open_store(url) as store:
        store.load_latest("agent")


def test_a_refused_login_is_not_retried(tmp_path: Path) -> None:
    with (
        Valkey(tmp_path, config="requirepass right") as server,
        server.client(password="right") as client,
    ):
        before = client.info("stats")["total_connections_received"]
        url = server.url.replace("//", "//:wrong@")
        with pytest.raises(ConfigurationError, match="refused the login"), open_store(url) as store:
            store.load_latest("agent")
        assert client.info("stats")["total_connections_received"] == before + 1


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@host:port/0",
        "redis://me:secret@host/0?sokcet_timeout=5",
        "redis://me:12/secret@host/0",
        "redis://me:12?secret@host/0",
        "redis://me:12#secret@host/0",
        "redis://me:p@12/secret@host/0",
        "redis://:secret@[::1/0",
        "redis:me:secret@host",
        "me:secret@host",
        "redis+sentinel://:secret@host",
        "redis+sentinel://:secret@host/m/0?sentinel_password=secret&sokcet_timeout=5",
        "redis+sentinel://:x/secret@host/m/0?sentinel_password=secret",
        "redis+cluster://:secret@",
        "redis+carrier://:secret@host",
    ],
)
def test_an_error_never_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisCheckpointStore.from_url(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret" not in str(error)
        error = error.__cause__


@pytest.mark.parametrize("prefix", ["a{b", "a}b"])
def test_a_prefix_that_a_cluster_would_misread_is_refused(redis_url: str, prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="brace"):
        open_store(redis_url, key_prefix=prefix)
